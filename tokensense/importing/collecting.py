"""From rows to groups: problems of equal question become one, and what is left out is counted.

Reads  one `Entry` a row: a problem and its responses.
Gives  `Imported`, problems in order of first appearance, traces in order of the files.

A group is the rollouts of one question text (`question_key`), whatever their rows call it, and of
one `Entry.group` (a training step, the trainer's own group) where the format has that: the same
question at two steps was answered by two policies. Problems of equal question remain one cluster.

Left out and counted: rollouts of a question that comes with different reference answers, and, where
a format says so, rows that repeat an earlier row in every field. A trainer that writes every sample
once and names none of them may well write two equal ones: those are two samples, and leaving one
out would bias every share. A problem name that two questions share is refused where it comes again.

Source: own rules; equal prompts are the only group id that TRL's completions have.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokensense.errors import InputError
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem, question_key
from tokensense.tasks.records import Row, RowError, rows

REPEATED = "row repeats an earlier one in every field"
CONTRADICTORY = "different reference answers to one question"


class SetAsideError(Exception):
    """A row is readable but contradicts itself; readers raise it with the reason."""


class Entry(NamedTuple):
    """What one row holds.

    Attributes:
        problem: as the row names it.
        traces: its responses; `Trace.problem` becomes the name of the question's first row.
        set_aside: reasons, one a response of the row that was left out.
        group: tells apart groups of one question; "" where the format knows no more than questions.
        prompt: ids, or text without special tokens, of the prompt as it was sampled under; None
            where the row has the question itself.
    """

    problem: Problem
    traces: list[Trace]
    set_aside: tuple[str, ...] = ()
    group: str = ""
    prompt: tuple[int, ...] | str | None = None

    @property
    def question_key(self) -> str:
        """Equal for equal questions; that of ids is known before their text is."""
        if isinstance(self.prompt, tuple):
            return question_key(" ".join(map(str, self.prompt)))
        return question_key(self.problem.question)


def collect(
    path: str | Path | Sequence[Path],
    parse: Callable[[Row], Entry],
    *,
    format: str,
    limit: int | None = None,
    distinct: Callable[[Row], bool] | None = lambda _: True,
    nan_is_null: bool = False,
) -> Imported:
    """Read files row by row and put the rollouts of each question together.

    Args:
        path: JSON lines or Parquet; or many, of which one that cannot be read at all is refused.
        parse: makes an entry of a row; raises RowError (refused) or SetAsideError (set aside).
        format: the name of the layout, for messages.
        limit: keep this many problems, the first, with all their rollouts; None keeps all. Counts
            and refused lines are those of the whole file.
        distinct: which rows are set aside when they repeat an earlier one in every field; usually
            all, None for none.
        nan_is_null: see `records.rows`.

    Returns:
        See Imported.

    Raises:
        InputError: no such file, `limit` below 1, or not one row is there that can be read.
        MissingExtraError: Parquet, and pyarrow is not installed.
    """
    if limit is not None and limit < 1:
        raise InputError(f"`limit` needs at least 1 problem; it is {limit}. None keeps all.")
    refused: list[str] = []
    groups = _Groups()
    seen: set[bytes] = set()
    for row in _all_rows(path, refused, nan_is_null=nan_is_null):
        try:
            entry = parse(row)
            digest = _digest(row.record) if distinct is not None and distinct(row) else None
            if digest is not None and digest in seen:
                groups.set_aside[REPEATED] += len(entry.traces)
            else:
                groups.add(entry)
            if digest is not None:
                seen.add(digest)
        except SetAsideError as reason:
            groups.set_aside[str(reason)] += 1
        except RowError as error:
            refused.append(f"{row.place}: {error}")
    imported = groups.imported(refused, limit)
    if not groups.problems and not imported.set_aside:
        where = path if isinstance(path, str | Path) else ", ".join(map(str, path[:3]))
        came = f"{where} has none"
        if refused:
            came = f"of {where} none could be read, the first because: {refused[0]}"
        raise InputError(
            f"rows in the format `{format}` are needed; {came}. "
            "Check the file, the format and the names of the fields."
        )
    return imported


def _all_rows(
    path: str | Path | Sequence[Path], refused: list[str], *, nan_is_null: bool
) -> Iterator[Row]:
    if isinstance(path, str | Path):
        yield from rows(path, refused, nan_is_null=nan_is_null)
        return
    for part in path:
        try:
            yield from rows(part, refused, nan_is_null=nan_is_null)
        except InputError as error:  # a Parquet file that a killed run left unfinished
            refused.append(f"{part}: {error}")


def _digest(record: Mapping[str, Any]) -> bytes:
    # `default` is for the dates and decimals that Parquet may hold.
    text = json.dumps(record, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class _Group(NamedTuple):
    """What tells groups apart."""

    within: str
    question: str


class _Groups:
    """Problems and traces so far, by question."""

    def __init__(self) -> None:
        self.problems: dict[_Group, Problem] = {}
        self.prompts: dict[_Group, tuple[int, ...] | str] = {}
        self.answers: dict[str, str] = {}
        self.group_of_name: dict[str, _Group] = {}
        self.traces: list[tuple[_Group, Trace]] = []
        self.contradictory: set[str] = set()
        self.set_aside: Counter[str] = Counter()

    def add(self, entry: Entry) -> None:
        """Take in a row, whole or not at all.

        Raises:
            RowError: its name was that of another question.
        """
        problem = entry.problem
        group = _Group(entry.group, entry.question_key)
        if self.group_of_name.setdefault(problem.name, group) != group:
            raise RowError(
                f"a name of its own is needed for each question; {problem.name!r} was that of "
                "another question before"
            )
        self.problems.setdefault(group, problem)
        if entry.prompt is not None:
            self.prompts.setdefault(group, entry.prompt)
        if problem.answer is not None:
            known = self.answers.setdefault(group.question, problem.answer)
            if known != problem.answer:
                self.contradictory.add(group.question)
        self.traces.extend((group, trace) for trace in entry.traces)
        self.set_aside.update(entry.set_aside)

    def imported(self, refused: list[str], limit: int | None) -> Imported:
        """What is to be kept, and the counts."""
        good = [group for group in self.problems if group.question not in self.contradictory]
        kept = {
            group: replace(self.problems[group], answer=self.answers.get(group.question))
            for group in good[:limit]
        }
        lost = sum(group.question in self.contradictory for group, _ in self.traces)
        if lost:
            self.set_aside[CONTRADICTORY] += lost
        prompts = self.prompts
        return Imported(
            problems=list(kept.values()),
            traces=[_named(t, kept[group].name) for group, t in self.traces if group in kept],
            set_aside=dict(self.set_aside),
            refused=refused,
            prompts={kept[group].name: prompts[group] for group in kept if group in prompts},
        )


def _named(trace: Trace, problem: str) -> Trace:
    return trace if trace.problem == problem else replace(trace, problem=problem)


def steps_joined(steps: Iterable[str], separator: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    r"""A response from its steps, and the characters [start, end) of each step in it.

    >>> steps_joined(["One.", "Two!"], "\n\n")
    ('One.\n\nTwo!', ((0, 4), (6, 10)))
    """
    bounds: list[tuple[int, int]] = []
    end = -len(separator)
    steps = list(steps)
    for step in steps:
        start = end + len(separator)
        end = start + len(step)
        bounds.append((start, end))
    return separator.join(steps), tuple(bounds)
