"""From rows to groups: problems of equal question become one, and what is left out is counted.

Reads  one `Entry` a row: a problem and its responses.
Gives  `Imported`, problems in order of first appearance, traces in order of the file.

A group is the rollouts of one question text (`question_key`), whatever their rows call it. Left out
and counted: rollouts of a question that comes with different reference answers, and rows that
repeat an earlier row in every field (give each sample a name or a number of its own if two samples
may be equal). A problem name that two questions share is refused where it comes up again.

Source: own rules; equal prompts are the only group id that TRL's completions have.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
    """

    problem: Problem
    traces: list[Trace]
    set_aside: tuple[str, ...] = ()


def collect(
    path: str | Path, parse: Callable[[Row], Entry], *, format: str, limit: int | None = None
) -> Imported:
    """Read a file row by row and put the rollouts of each question together.

    Args:
        path: JSON lines or Parquet.
        parse: makes an entry of a row; raises RowError (refused) or SetAsideError (set aside).
        format: the name of the layout, for messages.
        limit: keep this many problems, the first, with all their rollouts; None keeps all. Counts
            and refused lines are those of the whole file.

    Returns:
        See Imported.

    Raises:
        InputError: no such file, `limit` below 1, or not one row is there that can be read.
    """
    if limit is not None and limit < 1:
        raise InputError(f"`limit` needs at least 1 problem; it is {limit}. None keeps all.")
    refused: list[str] = []
    groups = _Groups()
    seen: set[bytes] = set()
    for row in rows(path, refused):
        try:
            entry = parse(row)
            digest = _digest(row.record)
            if digest in seen:
                groups.set_aside[REPEATED] += len(entry.traces)
            else:
                groups.add(entry)
            seen.add(digest)
        except SetAsideError as reason:
            groups.set_aside[str(reason)] += 1
        except RowError as error:
            refused.append(f"{row.place}: {error}")
    imported = groups.imported(refused, limit)
    if not groups.problems and not imported.set_aside:
        came = f"{path} has none"
        if refused:
            came = f"of {path} none could be read, the first because: {refused[0]}"
        raise InputError(
            f"rows in the format `{format}` are needed; {came}. "
            "Check the file, the format and the names of the fields."
        )
    return imported


def _digest(record: Mapping[str, Any]) -> bytes:
    # `default` is for the dates and decimals that Parquet may hold.
    text = json.dumps(record, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class _Groups:
    """Problems and traces so far, by question."""

    def __init__(self) -> None:
        self.problems: dict[str, Problem] = {}
        self.key_of_name: dict[str, str] = {}
        self.traces: list[tuple[str, Trace]] = []
        self.contradictory: set[str] = set()
        self.set_aside: Counter[str] = Counter()

    def add(self, entry: Entry) -> None:
        """Take in a row, whole or not at all."""
        problem = entry.problem
        key = question_key(problem.question)
        if self.key_of_name.setdefault(problem.name, key) != key:
            raise RowError(
                f"a name of its own is needed for each question; {problem.name!r} was that of "
                "another question before"
            )
        first = self.problems.setdefault(key, problem)
        if first.answer is None:
            self.problems[key] = replace(first, answer=problem.answer)
        elif problem.answer not in (None, first.answer):
            self.contradictory.add(key)
        self.traces.extend((key, trace) for trace in entry.traces)
        self.set_aside.update(entry.set_aside)

    def imported(self, refused: list[str], limit: int | None) -> Imported:
        """What is to be kept, and the counts."""
        good = [key for key in self.problems if key not in self.contradictory]
        kept = {key: self.problems[key] for key in good[:limit]}
        lost = sum(key in self.contradictory for key, _ in self.traces)
        if lost:
            self.set_aside[CONTRADICTORY] += lost
        return Imported(
            problems=list(kept.values()),
            traces=[_named(trace, kept[key].name) for key, trace in self.traces if key in kept],
            set_aside=dict(self.set_aside),
            refused=refused,
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
