"""Rewards of responses that were just sampled.

Reads  traces, and the reference answer of each problem.
Gives  graded: the traces with rewards, and why some have none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokensense.rollouts.trajectory import Trace
from tokensense.tasks.answers import AnswerChecker


def graded(
    traces: Sequence[Trace], answers: Mapping[str, str | None]
) -> tuple[list[Trace], dict[str, int]]:
    """Rewards by the answer checker: 1 right, 0 wrong, NaN undecided.

    Args:
        traces: as sampled.
        answers: reference answer by problem name; None where none is known.

    Returns:
        The traces in their order with rewards, and reason -> count of the undecided ones.
    """
    undecided: Counter[str] = Counter()
    found = []
    with AnswerChecker() as checker:
        for trace in traces:
            answer = answers[trace.problem]
            if answer is None:
                undecided["no reference answer"] += 1
                found.append(trace)
                continue
            verdict = checker.check(trace.text, answer)
            if verdict.status == "undecided":
                undecided[verdict.reason] += 1
            found.append(replace(trace, reward=verdict.reward))
    return found, dict(undecided)
