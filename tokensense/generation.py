"""What `Study.generate` samples: problems, responses to them, and what is known about these.

Reads  a policy; a file of problems, problems, or a number of problems of a planted task.
Gives  choose (the problems), draw (problems and judged traces), question_digest.
Sign   rewards are 1 right, 0 wrong, NaN undecided.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokensense.checks import require_member, require_range
from tokensense.rollouts.grading import graded, labelled
from tokensense.rollouts.trajectory import Trace
from tokensense.tasks import CATALOGUE
from tokensense.tasks.planted import PLANTED
from tokensense.tasks.problem import Problem

if TYPE_CHECKING:
    from tokensense.models.policy import Policy


class Drawn(NamedTuple):
    """Judged responses; reason -> count of the undecided ones."""

    traces: list[Trace]
    undecided: dict[str, int]


def choose(
    problems: str | Path | int | Sequence[Problem], *, task: str, limit: int | None, seed: int
) -> tuple[list[Problem], list[str]]:
    """Problems to sample for, and the lines of a file that could not be read.

    Args:
        problems: a file, the problems themselves, or how many to draw of a planted task.
        task: format of the file, one of `tasks.CATALOGUE`; or one of `tasks.planted.PLANTED`.
        limit: problems to take, from the start; None for all.
        seed: of problems that are drawn.

    Raises:
        SchemaError: `task` does not go with `problems`.
        InputError: the file cannot be read, or the task has fewer problems.
    """
    if isinstance(problems, int):
        require_member(
            "task", task, PLANTED, fix="Problems of other tasks are read: give their file."
        )
        require_range("problems", problems, 1, 10**7)
        return PLANTED[task].problems(problems, seed)[:limit], []
    if not isinstance(problems, str | Path):
        return list(problems[:limit]), []
    require_member(
        "task", task, CATALOGUE, fix="Problems of planted tasks are drawn: give their number."
    )
    read = CATALOGUE[task](problems)
    return list(read.problems[:limit]), list(read.refused)


def draw(
    policy: "Policy",
    problems: Sequence[Problem],
    *,
    task: str,
    group: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    progress: bool,
) -> Drawn:
    """Sample responses and judge them: by the planted truth, or by their answers.

    Args as for `Study.generate`.
    """
    from tokensense.rollouts.generate import responses

    traces = responses(
        policy,
        problems,
        group=group,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        progress=progress,
    )
    if task in PLANTED:
        return Drawn(labelled(traces, problems, task=PLANTED[task], encoder=policy), {})
    return Drawn(*graded(traces, {problem.name: problem.answer for problem in problems}))


def question_digest(problems: Sequence[Problem]) -> str:
    """Digest of names, questions and answers, in order."""
    rows = [[problem.name, problem.question, problem.answer] for problem in problems]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
