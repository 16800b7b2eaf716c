"""A problem, and what makes two of them the same.

Reads  problems from any source: a task generator, a published file, an imported trace.
Gives  Problem; `question_key`, equal for equal questions; merging with everything counted.

Two problems are the same when their question texts are, whatever their names. Texts are compared in
Unicode form C with runs of white space as one blank. Case is kept (in mathematics `a` and `A` are
two variables), and so are compatibility characters (`x²` is not `x2`).

Source: own rules. The DAPO-17k file repeats each problem about 100 times (verl-project/verl#3065),
which is why every reader merges and says how many it merged.
"""

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Problem:
    """A task instance with a checkable answer.

    Attributes:
        name: its id in its source.
        question: the question as given, without a chat template and without instructions.
        answer: the reference answer as text, None where none is known.
        source: the file or generator it came from.
        solution: a reference solution as text, None where none is known.
    """

    name: str
    question: str
    answer: str | None
    source: str = ""
    solution: str | None = None


class Merged(NamedTuple):
    """Problems of distinct questions, and what was left out on the way.

    Attributes:
        problems: one a question, in order of first appearance.
        duplicates: rows left out because question and answer were there before.
        contradictory: rows left out, all of them, whose question has two or more different answers.
    """

    problems: list[Problem]
    duplicates: int
    contradictory: list[Problem]


def question_key(question: str) -> str:
    """SHA-256 (hexadecimal) of a question text with its white space normalized.

    Problems of equal key are one cluster: the unit of resampling of every interval.

    >>> question_key("What is 1 + 1?") == question_key("  What  is 1 + 1? ")
    True
    >>> question_key("Find a.") == question_key("Find A.")
    False
    """
    text = " ".join(unicodedata.normalize("NFC", question).split())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def merge(problems: Iterable[Problem]) -> Merged:
    """Merge problems of equal question; those whose answers differ are set aside, never merged.

    An unknown answer (None) contradicts nothing: the first known answer is kept. Memory grows with
    the distinct questions only, so a generator over millions of repeated rows may come in.

    Args:
        problems: in the order of the source.

    Returns:
        See Merged; `len(problems) + duplicates + len(contradictory)` is the number that came in.
    """
    kept: dict[str, Problem] = {}
    repeats: dict[str, int] = {}
    rivals: dict[str, list[Problem]] = {}
    for problem in problems:
        key = question_key(problem.question)
        first = kept.get(key)
        if first is None:
            kept[key], repeats[key] = problem, 0
        elif None not in (first.answer, problem.answer) and first.answer != problem.answer:
            rivals.setdefault(key, []).append(problem)
        else:
            repeats[key] += 1
            if first.answer is None and problem.answer is not None:
                kept[key] = problem
    contradictory = [
        row for key in rivals for row in [kept[key]] * (1 + repeats[key]) + rivals[key]
    ]
    return Merged(
        problems=[problem for key, problem in kept.items() if key not in rivals],
        duplicates=sum(count for key, count in repeats.items() if key not in rivals),
        contradictory=contradictory,
    )
