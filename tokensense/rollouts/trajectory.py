"""Responses as they came, and the one Dataset that freezes them.

Reads  `Imported` (problems and traces) and an `Encoder` (what is needed of a policy's tokenizer).
Gives  the `/rollouts` node as `schema.ROLLOUTS` says: flat token arrays, `length` beside them.
Order  problems as they came; rollouts of one problem lie together, as they came within it.
Sign   none: nothing here is signed. Rewards are 1 right, 0 wrong, NaN undecided.

Ids are the truth and text is for show: where a source has the sampler's ids, the response's text is
what those ids decode to; where it has text only, the text is encoded with the scoring policy's
tokenizer and the rollout is marked `retokenized`. `step` is found by characters: a token belongs to
the step of its first character that is not white space; white space between two steps belongs to
the step before it; all else outside the steps (a sampled end token) has step -1.

Source: own work; the reasons are in the issue threads of trl#5224, sglang#26555, tokenizers#1628
(drift of re-tokenized text, partial UTF-8), knnlm#6 (narrow ids), verl#6310 (empty responses).
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import xarray as xr
from jaxtyping import Int

from tokensense.errors import InputError, PolicyError
from tokensense.rollouts.alignment import Characters, characters_of, steps_of
from tokensense.rollouts.kinds import classify
from tokensense.rollouts.requirements import (
    require_ids,
    require_one_a_token,
    require_steps,
    require_unicode,
    require_wrong_token,
)
from tokensense.rollouts.table import TextTable
from tokensense.schema import NO_STEP, NO_TOKEN, ROLLOUTS, Finish, IdsOrigin, Label, attributes
from tokensense.tasks.problem import Problem, question_key


@runtime_checkable
class Encoder(Protocol):
    """What tokens and prompts need of a policy; `models.policy.Policy` satisfies it.

    Ids are those of the policy. No method adds a special token, save `render`, whose chat template
    does.
    """

    @property
    def name(self) -> str:
        """Name of the policy, as shown to people."""
        ...

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer: equal digests, equal ids."""
        ...

    @property
    def wordings(self) -> str:
        """The bank of sentences that it can be told: `english`, or a planted task."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens that prompt and response may have together."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, no special tokens added."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for; a special token's bytes are its text."""
        ...

    def plain_text(self, ids: Sequence[int]) -> str:
        """Text of ids without their special tokens, as trainers print it."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` and the characters [start, end) that each stands for."""
        ...

    def render(self, question: str, *, insert: str = "", placement: str = "user_end") -> list[int]:
        """Prompt ids up to and including the generation prompt; an empty `insert` is the base."""
        ...


@dataclass(frozen=True)
class Trace:
    """One response as it came, before it has tokens.

    Attributes:
        problem: `Problem.name` of the problem that it answers.
        name: id of the rollout in its source.
        text: the response; may be empty.
        ids: the sampler's own ids where the source has them, else None.
        reward: 1 right, 0 wrong, NaN undecided or unknown.
        generator: name of the model that wrote it.
        finish: why it ended.
        label: what is known about wrong steps.
        wrong_step: index of the first wrong step, -1 if none or not known.
        steps: characters [start, end) of each step in `text`, in order and without overlap.
        wrong_token: index of the first wrong token, -1 if none or not known.
        kinds: `schema.Kind` of each token by a generator that knows; None: the rules of `kinds`.
        token_steps: step of each token by a generator that knows; None: found from `steps`.
        logps: log-probability of each token as its sampler reports it, nats; None: not known.
    """

    problem: str
    name: str
    text: str
    ids: tuple[int, ...] | None = None
    reward: float = math.nan
    generator: str = ""
    finish: Finish = Finish.UNKNOWN
    label: Label = Label.UNLABELED
    wrong_step: int = NO_STEP
    steps: tuple[tuple[int, int], ...] = ()
    wrong_token: int = NO_TOKEN
    kinds: tuple[int, ...] | None = None
    token_steps: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Imported:
    """What a reader made of a file.

    Attributes:
        problems: in the order of the file.
        traces: in the order of the file.
        set_aside: reason -> how many traces were left out for it.
        refused: one message a line that could not be read: "file:line: what was needed, what came".
        prompts: problem name -> the prompt that it was sampled under: its ids, or its text without
            special tokens. `fidelity.recover` finds the question in it.
    """

    problems: list[Problem]
    traces: list[Trace]
    set_aside: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    prompts: dict[str, tuple[int, ...] | str] = field(default_factory=dict)


class _Response(NamedTuple):
    """A trace with its tokens: ids, bytes and steps; are those bytes the text that came?"""

    ids: list[int]
    pieces: list[bytes]
    step: Int[np.ndarray, " token"]
    faithful: bool


def assemble(imported: Imported, encoder: Encoder) -> xr.Dataset:
    """Freeze problems and traces as the `/rollouts` node.

    Args:
        imported: what a reader or a sampler made. Problems without a rollout are kept.
        encoder: gives prompt ids, the ids of text-only traces, and the bytes of every id.

    Returns:
        Dataset with exactly the variables of `schema.ROLLOUTS`; `length`, `prompt_length` and
        `text_length` carry CF's `sample_dimension`. Attributes: `sampled_by` and `source` (names in
        order of appearance), `set_aside` (JSON: reason -> traces), `refused` (lines), `tokenizer`,
        `tokenizer_digest`, `text_mismatch` (rollouts whose tokens' bytes do not begin with, or
        without exact ids are not, the text given).

    Raises:
        InputError: a name is given twice or is unknown, a text is not valid Unicode, an id does not
            fit, or steps do not lie in the text; the message names the problem or the rollout.
        PolicyError: the encoder gives ids and offsets of different number, or does not know an id.
    """
    index = _problem_index(imported.problems)
    traces = _grouped(imported.traces, index)
    bytes_of: dict[int, bytes] = {}
    responses = [_tokenized(trace, encoder, bytes_of) for trace in traces]
    kinds = [
        classify(response.pieces, question=imported.problems[index[trace.problem]].question)
        if trace.kinds is None
        else np.array(trace.kinds, np.int64)
        for trace, response in zip(traces, responses, strict=True)
    ]
    logps = [
        np.full(len(response.ids), np.nan) if trace.logps is None else np.array(trace.logps)
        for trace, response in zip(traces, responses, strict=True)
    ]
    table = TextTable()
    arrays: dict[str, Sequence[int] | np.ndarray] = {
        **_problem_arrays(imported.problems, encoder, table),
        **_rollout_arrays(traces, index, table),
        "length": [len(response.ids) for response in responses],
        "token_id": [i for response in responses for i in response.ids],
        "sampled_logp": _joined(logps),
        "kind": _joined(kinds),
        "step": _joined([response.step for response in responses]),
        "vocab_id": sorted(bytes_of),
        "vocab_text": table.rows(bytes_of[i] for i in sorted(bytes_of)),
    }
    arrays["text_length"] = [len(raw) for raw in table.row_of]
    arrays["text_byte"] = np.frombuffer(b"".join(table.row_of), np.uint8)
    dataset = xr.Dataset(
        {
            name: (variable.dims, np.asarray(arrays[name], variable.dtype), attributes(variable))
            for name, variable in ROLLOUTS.items()
        }
    )
    for name, dim in (
        ("length", "token"),
        ("prompt_length", "prompt_token"),
        ("text_length", "byte"),
    ):
        dataset[name].attrs["sample_dimension"] = dim
    return dataset.assign_attrs(
        sampled_by=_distinct(trace.generator for trace in traces),
        source=_distinct(problem.source for problem in imported.problems),
        set_aside=json.dumps(imported.set_aside, sort_keys=True),
        refused=len(imported.refused),
        tokenizer=encoder.name,
        tokenizer_digest=encoder.tokenizer_digest,
        text_mismatch=sum(not response.faithful for response in responses),
    )


def _problem_index(problems: Sequence[Problem]) -> dict[str, int]:
    """Name -> place. A name that stands for two problems would join their groups."""
    index: dict[str, int] = {}
    for place, problem in enumerate(problems):
        if index.setdefault(problem.name, place) != place:
            raise InputError(
                f"problem names that differ are needed; {problem.name!r} is the name of problems "
                f"{index[problem.name]} and {place}. Give each problem a name of its own."
            )
        parts = {
            "name": problem.name,
            "question": problem.question,
            "answer": problem.answer or "",
            "solution": problem.solution or "",
        }
        for what, text in parts.items():
            require_unicode(text, f"the {what} of problem {problem.name!r}")
    return index


def _grouped(traces: Sequence[Trace], index: dict[str, int]) -> list[Trace]:
    """Traces with those of one problem together; the order within a problem is kept."""
    for trace in traces:
        if trace.problem not in index:
            raise InputError(
                f"rollout {trace.name!r} needs a problem that was imported; it names "
                f"{trace.problem!r}. Import that problem too, or leave the rollout out."
            )
    return sorted(traces, key=lambda trace: index[trace.problem])


def _tokenized(trace: Trace, encoder: Encoder, bytes_of: dict[int, bytes]) -> _Response:
    """Give a trace its tokens; `bytes_of` gathers the bytes of every id seen."""
    what = f"rollout {trace.name!r} of problem {trace.problem!r}"
    for text in (trace.text, trace.name, trace.generator):
        require_unicode(text, what)
    require_steps(trace.steps, trace.wrong_step, size=len(trace.text), what=what)
    ids = encoder.encode(trace.text) if trace.ids is None else list(trace.ids)
    require_ids(ids, what)
    for token in ids:
        if token not in bytes_of:
            bytes_of[token] = _bytes_of(token, encoder, what)
    for name in ("kinds", "token_steps", "logps"):
        require_one_a_token(name, getattr(trace, name), count=len(ids), what=what)
    require_wrong_token(trace.wrong_token, count=len(ids), what=what)
    pieces = [bytes_of[token] for token in ids]
    decoded, given = b"".join(pieces), trace.text.encode("utf-8")
    # Decoders strip end tokens, so the text of exact ids may end earlier than they do.
    faithful = decoded.startswith(given) if trace.ids is not None else decoded == given
    if trace.token_steps is not None:
        return _Response(ids, pieces, np.array(trace.token_steps, np.int64), faithful)
    if not trace.steps:
        return _Response(ids, pieces, np.full(len(ids), NO_STEP), faithful)
    bounds = np.array(trace.steps, np.int64)
    if trace.ids is not None or faithful:
        characters = characters_of(pieces)
        bounds += _shift(trace.text, characters.text, what)
    else:
        characters = _encoded_characters(trace.text, ids, encoder, what)
    return _Response(ids, pieces, steps_of(characters, bounds), faithful)


def _bytes_of(token: int, encoder: Encoder, what: str) -> bytes:
    """Bytes of one id; an id of another policy is named with its rollout."""
    try:
        return encoder.token_bytes(token)
    except PolicyError as cause:
        raise PolicyError(
            f"{what} needs ids of `{encoder.name}`; it has another: {cause} Import with the policy "
            "that sampled, or leave the ids out."
        ) from cause


def _encoded_characters(text: str, ids: list[int], encoder: Encoder, what: str) -> Characters:
    """Characters of tokens whose bytes are not the text: a normalizer changed it on the way."""
    again, spans = encoder.encode_with_offsets(text)
    if again != ids or len(spans) != len(ids):
        raise PolicyError(
            f"{what} needs one offset a token; `{encoder.name}` gives {len(spans)} offsets for "
            f"{len(ids)} tokens. Use a policy with a fast tokenizer, or leave the steps out."
        )
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return Characters(text, start, end)


def _shift(text: str, decoded: str, what: str) -> int:
    """Where the text that came begins in the decoded one: 0, or 1 after an added first blank."""
    for shift in (0, 1):
        if decoded.startswith(text, shift) and not decoded[:shift].strip():
            return shift
    raise InputError(
        f"{what} has steps in its text, which needs to be what its ids decode to; they decode to "
        f"{decoded[:60]!r}, the text is {text[:60]!r}. Give steps as characters of the decoded "
        "ids, or leave the steps out."
    )


def _problem_arrays(
    problems: Sequence[Problem], encoder: Encoder, table: TextTable
) -> dict[str, Sequence[int] | np.ndarray]:
    """Arrays over problems and their prompt tokens; equal question keys share a cluster."""
    prompts = [encoder.render(problem.question) for problem in problems]
    for problem, prompt in zip(problems, prompts, strict=True):
        require_ids(prompt, f"the prompt of problem {problem.name!r}")
    clusters: dict[str, int] = {}
    return {
        "problem_name": table.rows(problem.name for problem in problems),
        "question": table.rows(problem.question for problem in problems),
        "answer": table.rows(problem.answer for problem in problems),
        "solution": table.rows(problem.solution for problem in problems),
        "cluster": [
            clusters.setdefault(question_key(problem.question), len(clusters))
            for problem in problems
        ],
        "prompt_length": [len(prompt) for prompt in prompts],
        "prompt_id": [token for prompt in prompts for token in prompt],
    }


def _rollout_arrays(
    traces: Sequence[Trace], index: dict[str, int], table: TextTable
) -> dict[str, Sequence[int] | np.ndarray]:
    """Arrays over rollouts that need no tokens."""
    for trace in traces:
        if math.isinf(trace.reward):
            raise InputError(
                f"rollout {trace.name!r} needs a finite reward or NaN; it has {trace.reward}. "
                "Give 1 for right, 0 for wrong, NaN for undecided."
            )
    exact, again = IdsOrigin.EXACT, IdsOrigin.RETOKENIZED
    return {
        "rollout_name": table.rows(trace.name for trace in traces),
        "problem_of": [index[trace.problem] for trace in traces],
        "reward": np.array([trace.reward for trace in traces], np.float32),
        "generator": table.rows(trace.generator for trace in traces),
        "finish": [trace.finish for trace in traces],
        "ids_origin": [again if trace.ids is None else exact for trace in traces],
        "label": [trace.label for trace in traces],
        "wrong_step": [trace.wrong_step for trace in traces],
        "wrong_token": [trace.wrong_token for trace in traces],
    }


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Flat array of all parts; empty where there is none."""
    return np.concatenate([*parts, np.zeros(0, np.int64)])


def _distinct(names: Iterable[str]) -> list[str]:
    """Names in order of appearance, each once, the empty one left out."""
    return [name for name in dict.fromkeys(names) if name]
