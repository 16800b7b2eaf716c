"""The words of the project: dimensions, enumerations, stored variables; defined here alone.

problem    a task instance with a checkable answer
rollout    one sampled response to a problem; its tokens are the response's, never the prompt's
group      the rollouts of one problem at one step
condition  a named change of the context of a rollout; `base` is the context it was sampled under
probe      a named set of conditions
logp       log-probability of the token that was sampled, nats, always float32
shift      logp[condition] - logp[base], nats; positive: the sampled token becomes likelier
common     (z+ + z-)/2 of two opposed conditions; contrast: (z+ - z-)/2
sensitivity  max(|z+|, |z-|) = |common| + |contrast|
surprisal  -logp[base], nats
family     what the edited word is about: verdict, a placebo (day, color, ...), answer
level      the edited word's side: pos, neg, or none where there is no opposition
frame      the sentence around the edit
wording    one of several word pairs of the same meaning
placebo    an irrelevant one-word pair in the verdict's own frame, equal token count
numerical floor  q99 of |difference| between two row plans, nats: checks the machine, no cut
wording floor    q95 of |placebo contrast| within deciles of ||onehot - p||, nats
unresolved       |mean contrast over wordings| below the wording floor
off-policy       `sampled_by` differs from `scored_by`

Arrays are flat and ragged: one `token` dimension over all response tokens of all rollouts,
`length(rollout)` beside it (CF contiguous ragged array). Enumerations are stored as small integers
with CF `flag_values` and `flag_meanings`.
"""

from enum import IntEnum
from typing import NamedTuple

FORMAT_VERSION = 1

BASE = "base"
POSITIVE = "pos"
NEGATIVE = "neg"
NO_LEVEL = "none"
VERDICT = "verdict"
NO_STEP = -1
NO_TOKEN = -1
NO_TEXT = -1


class Kind(IntEnum):
    """What a token is. COMPUTED and CARRIED digits need a generator that knows; text has DIGIT."""

    OTHER = 0
    DIGIT = 1
    COMPUTED_DIGIT = 2
    CARRIED_DIGIT = 3
    OPERATOR = 4
    VARIABLE = 5
    FORMAT = 6
    CONNECTIVE = 7
    DISCOURSE = 8
    COPIED = 9
    FINAL_ANSWER = 10
    CALCULATOR = 11


class Finish(IntEnum):
    """Why a response ended."""

    UNKNOWN = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3


class IdsOrigin(IntEnum):
    """EXACT: the sampler's own ids. RETOKENIZED: text, by the scoring policy's tokenizer."""

    EXACT = 0
    RETOKENIZED = 1


class Label(IntEnum):
    """What a person (or a generator that knows) says about the steps of a response."""

    UNLABELED = 0
    NO_ERROR = 1
    ERROR = 2


class Comparability(IntEnum):
    """Why a rollout under a condition may, or may not, be compared with its base."""

    OK = 0
    OPENER_DIFFERS = 1
    TRUNCATED = 2
    BOS = 3
    OWN_EXAMPLE = 4
    NOT_APPLICABLE = 5
    UNEQUAL_LENGTH = 6


class Variable(NamedTuple):
    """How one stored array looks: dims, dtype, units, and what it says in plain words, sign too."""

    dims: tuple[str, ...]
    dtype: str
    units: str
    description: str
    flags: type[IntEnum] | None = None


# Texts (questions, answers, ids, generator names, token bytes) lie in one table a node: UTF-8 bytes
# back to back in `text_byte`, `text_length` bytes each; variables point into it by row number,
# -1 for "no text".
ROLLOUTS: dict[str, Variable] = {
    "problem_name": Variable(
        ("problem",), "int32", "1", "row of the text table: the problem's id in its source"
    ),
    "question": Variable(
        ("problem",), "int32", "1", "row of the text table: the question as given"
    ),
    "answer": Variable(
        ("problem",), "int32", "1", "row of the text table: the reference answer, -1 if none"
    ),
    "solution": Variable(
        ("problem",), "int32", "1", "row of the text table: a reference solution, -1 if none"
    ),
    "cluster": Variable(
        ("problem",),
        "int32",
        "1",
        "equal for problems of equal question text: the unit of resampling",
    ),
    "prompt_length": Variable(("problem",), "int32", "1", "tokens of the problem's base prompt"),
    "prompt_id": Variable(
        ("prompt_token",), "int32", "1", "token ids of all base prompts, back to back"
    ),
    "rollout_name": Variable(
        ("rollout",), "int32", "1", "row of the text table: the rollout's id in its source"
    ),
    "problem_of": Variable(("rollout",), "int32", "1", "index of the rollout's problem"),
    "length": Variable(("rollout",), "int32", "1", "response tokens of the rollout"),
    "reward": Variable(("rollout",), "float32", "1", "1 right, 0 wrong, NaN undecided or unknown"),
    "generator": Variable(
        ("rollout",), "int32", "1", "row of the text table: name of the model that wrote it"
    ),
    "finish": Variable(("rollout",), "int8", "1", "why the response ended", Finish),
    "ids_origin": Variable(("rollout",), "int8", "1", "where the token ids come from", IdsOrigin),
    "label": Variable(("rollout",), "int8", "1", "what is known about wrong steps", Label),
    "wrong_step": Variable(
        ("rollout",), "int32", "1", "index of the first wrong step, -1 if none or not known"
    ),
    "wrong_token": Variable(
        ("rollout",),
        "int32",
        "1",
        "index within the response of the first wrong token, -1 if none or not known",
    ),
    "token_id": Variable(
        ("token",), "int32", "1", "id of the sampled token; ids have no missing value"
    ),
    "sampled_logp": Variable(
        ("token",),
        "float32",
        "nats",
        "log-probability of the token as its sampler reports it: own samples at their temperature, "
        "imports as the node's attribute `engine` says; NaN if not known",
    ),
    "kind": Variable(
        ("token",), "int8", "1", "what the token is, by a generator that knows or by rules", Kind
    ),
    "step": Variable(
        ("token",),
        "int32",
        "1",
        "index of the step that holds the token, -1 where steps are not known",
    ),
    "vocab_id": Variable(("vocab",), "int32", "1", "token ids that occur in this store, ascending"),
    "vocab_text": Variable(
        ("vocab",), "int32", "1", "row of the text table: the exact bytes of the token"
    ),
    "text_length": Variable(("text",), "int32", "bytes", "bytes of each text"),
    "text_byte": Variable(("byte",), "uint8", "1", "UTF-8 bytes of all texts, back to back"),
}

TEXT_ROWS = (
    "problem_name",
    "question",
    "answer",
    "solution",
    "rollout_name",
    "generator",
    "vocab_text",
)

PROBE: dict[str, Variable] = {
    "logp": Variable(
        ("condition", "token"),
        "float32",
        "nats",
        "log-probability of the sampled token; NaN where not scored",
    ),
    "entropy": Variable(
        ("condition", "token"),
        "float32",
        "nats",
        "entropy of the next-token distribution the token was drawn from",
    ),
    "p_max": Variable(("condition", "token"), "float32", "1", "largest next-token probability"),
    "p_square_sum": Variable(
        ("condition", "token"), "float32", "1", "sum of squared next-token probabilities"
    ),
    "comparability": Variable(
        ("condition", "rollout"),
        "int8",
        "1",
        "may this rollout be compared with its base?",
        Comparability,
    ),
    "inserted_tokens": Variable(
        ("condition", "rollout"),
        "int32",
        "tokens",
        "prompt tokens under the condition minus those of the base prompt",
    ),
}

STATISTICS = ("logp", "entropy", "p_max", "p_square_sum")


def attributes(variable: Variable) -> dict[str, object]:
    """Attributes that a stored array carries: units, description, CF flags of an enumeration.

    Flag values are plain integers and meanings lower-case names joined by blanks, so that they
    survive any store.
    """
    found: dict[str, object] = {"units": variable.units, "description": variable.description}
    if variable.flags is not None:
        found["flag_values"] = [int(member) for member in variable.flags]
        found["flag_meanings"] = " ".join(member.name.lower() for member in variable.flags)
    return found
