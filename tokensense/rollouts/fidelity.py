"""How true an import is to the run it came from: its prompts, and the drift of its text.

Reads  `Imported` and what is needed of the scoring policy's tokenizer.
Gives  recover: the question inside each prompt, and how many prompts the policy renders as they
       were; drift: how many exact ids would change on the way ids -> text -> ids.
Sign   none: counts.

Trainers write prompts with the chat template around the question, as ids or as text without special
tokens. Putting that through a template again would score every token in a context that nobody
sampled in. So the question is what stands where this policy's own template puts one, and only if
the template then gives the run's prompt back; else the whole prompt is kept as the question and
counted as another context.

Source: own rules. Drift of re-tokenized text: trl#5224, sglang#26555, verl#6719; templates that
change between two renderings: trl#6361, verl#6854.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tokensense.errors import PolicyError
from tokensense.rollouts.trajectory import Encoder, Imported, Trace

# What stands for a question; policies of planted tasks know digits and few words.
MARKS = ("QUESTION", "7", "9")
SAME_IDS = "same ids"
SAME_TEXT = "same text"
OTHER = "another context"


class Drift(NamedTuple):
    """What re-tokenizing exact ids would change.

    Attributes:
        rollouts: those with exact ids.
        rollouts_changed: of them, those whose text becomes other ids.
        tokens: of the rollouts with exact ids.
        tokens_changed: those between the first and the last id that differ, both included.
    """

    rollouts: int
    rollouts_changed: int
    tokens: int
    tokens_changed: int


def recover(imported: Imported, reader: Encoder) -> tuple[Imported, dict[str, int]]:
    """Put the question in the place of each prompt that has one inside.

    Args:
        imported: with `prompts` where its source has them.
        reader: the policy that will score.

    Returns:
        The same problems with their questions; and how many base prompts of this policy have the
        `same ids` as the run's, the `same text`, or are `another context`. Problems without a
        prompt are not counted.

    Raises:
        PolicyError: a prompt has an id that the policy does not have; the message names the
            problem.
    """
    frame = _frame(reader)
    found: Counter[str] = Counter()
    problems = []
    for problem in imported.problems:
        prompt = imported.prompts.get(problem.name)
        if prompt is None:
            problems.append(problem)
            continue
        question, match = _question(prompt, reader, frame, problem.name)
        problems.append(replace(problem, question=question))
        found[match] += 1
    return replace(imported, problems=problems), dict(found)


def drift(traces: Iterable[Trace], encoder: Encoder) -> Drift:
    """Compare exact ids with those of their own text.

    Args:
        traces: those without ids are passed over: what their text lost nobody can tell.
        encoder: the policy that will score.

    Returns:
        See Drift.

    Raises:
        PolicyError: an id that the policy does not have.
    """
    counts = [0, 0, 0, 0]
    for trace in traces:
        if trace.ids is None:
            continue
        text = b"".join(map(encoder.token_bytes, trace.ids)).decode("utf-8", "replace")
        changed = _changed(list(trace.ids), encoder.encode(text))
        for place, count in enumerate((1, int(changed > 0), len(trace.ids), changed)):
            counts[place] += count
    return Drift(*counts)


def _changed(given: list[int], again: list[int]) -> int:
    """Ids between the first and the last difference; 1 if only ids were added."""
    if given == again:
        return 0
    shorter = min(len(given), len(again))
    head = next((i for i in range(shorter) if given[i] != again[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if given[-1 - i] != again[-1 - i]), rest)
    return max(len(given) - head - tail, 1)


class _Frame(NamedTuple):
    """What a template puts around a question, as text without special tokens."""

    before: str
    after: str

    def inside(self, text: str) -> str | None:
        """The question, where the text has this frame."""
        fits = text.startswith(self.before) and text.endswith(self.after)
        if not fits or len(text) < len(self.before) + len(self.after):
            return None
        return text[len(self.before) : len(text) - len(self.after)]


def _frame(reader: Encoder) -> _Frame:
    for mark in MARKS:
        text = reader.plain_text(reader.render(mark))
        if text.count(mark) == 1:
            before, _, after = text.partition(mark)
            return _Frame(before, after)
    return _Frame("", "")


def _question(
    prompt: tuple[int, ...] | str, reader: Encoder, frame: _Frame, name: str
) -> tuple[str, str]:
    """The question of a prompt, and how well this policy renders the prompt from it."""
    if isinstance(prompt, str):
        text = prompt
    else:
        _require_known(prompt, reader, name)
        text = reader.plain_text(prompt)
    for question in (frame.inside(text), text):
        if question is not None and question.strip():
            match = _match(prompt, reader.render(question), reader)
            if match != OTHER:
                return question, match
    return text, OTHER


def _match(prompt: tuple[int, ...] | str, rendered: list[int], reader: Encoder) -> str:
    if isinstance(prompt, str):
        return SAME_TEXT if reader.plain_text(rendered) == prompt else OTHER
    if rendered == list(prompt):
        return SAME_IDS
    given, again = (b"".join(map(reader.token_bytes, ids)) for ids in (prompt, rendered))
    return SAME_TEXT if given == again else OTHER


def _require_known(prompt: tuple[int, ...], reader: Encoder, name: str) -> None:
    try:
        for token in prompt:
            reader.token_bytes(token)
    except PolicyError as cause:
        raise PolicyError(
            f"the prompt of problem {name!r} needs ids of `{reader.name}`; it has another: {cause} "
            "Import with the policy that sampled."
        ) from cause
