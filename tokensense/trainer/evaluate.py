"""How well a policy does on held-out problems, and whether another does better.

Reads  a policy and the held-out problems of a Task; records of a run.
Gives  evaluate -> Evaluation; summary (with intervals), paired (differences of two policies on the
       same problems); reached (steps and seconds to a threshold).
Sign   difference = second - first; positive: the second is better, or longer.

The unit of evidence is the problem: intervals resample problems, with all their responses
(`stats.resampling`). Two policies are compared problem by problem, so both must have had the same.

mean@k      share of right responses, mean over problems
pass@k      a problem counts as solved when one of its k responses is right
majority    the most frequent final answer decides; at a tie, the share of the tied answers that is
            right; responses without an answer have no vote
lucky       share of all responses that are right over a wrong step; NaN where steps are not known

A response whose reward is not decided counts as wrong here, and is counted.

Source: pass@k as in arXiv:2107.03374, with k of k drawn; the rest own definitions.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from tokensense.checks import require_range
from tokensense.errors import StatisticsError
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.rollouts.generate import responses
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Finish, Label
from tokensense.stats.resampling import Resampling, intervals, resample
from tokensense.trainer.problems import Task
from tokensense.trainer.sinks import Record

METRICS = ("mean", "pass", "majority", "lucky", "length", "capped")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Held-out problems and what became of them.

    Attributes:
        names: of the problems.
        values: of each problem, the means over its responses; columns are METRICS.
        k: responses a problem.
        undecided: responses that count as wrong because their reward is not decided.
    """

    names: tuple[str, ...]
    values: Float64[np.ndarray, "problem metric"]
    k: int
    undecided: int

    def __getitem__(self, metric: str) -> Float64[np.ndarray, " problem"]:
        return np.asarray(self.values[:, METRICS.index(metric)])


class Estimate(NamedTuple):
    """A mean over problems, or a mean difference, in the unit of the metric.

    estimate: on all problems. low, high: of the 95 % interval, NaN where there is none. error: its
    standard error. problems: how many.
    """

    estimate: float
    low: float
    high: float
    error: float
    problems: int


def evaluate(
    policy: Policy,
    task: Task,
    *,
    k: int = 1,
    problems: int | None = None,
    max_new_tokens: int = 160,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = False,
    processes: Processes = ALONE,
) -> Evaluation:
    """Sample responses to the held-out problems and grade them.

    Args:
        policy: answers.
        task: holds problems out.
        k: responses a problem.
        problems: the first so many; None: all.
        max_new_tokens: most tokens of a response.
        temperature: of sampling; 0 is greedy.
        seed: same seed, same random numbers for each problem and place: policies are compared on
            those, too.
        progress: show a bar.
        processes: that sample a share each.

    Raises:
        StatisticsError: nothing is held out.
        SchemaError: a number is out of range.
        PolicyError: a prompt does not fit.
    """
    require_range("k", k, 1, 2**31)
    chosen = task.held_out[:problems]
    if not chosen:
        raise StatisticsError(
            f"an evaluation needs held-out problems; {task.name} has {len(task.held_out)} and "
            f"{problems} were asked for. Make the task with `held_out`."
        )
    found = responses(
        policy,
        chosen,
        group=k,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        progress=progress,
        processes=processes,
    )
    traces = task.grade(found, chosen, policy)
    groups = [traces[start : start + k] for start in range(0, len(traces), k)]
    return Evaluation(
        names=tuple(problem.name for problem in chosen),
        values=np.array([_metrics(group, task) for group in groups]),
        k=k,
        undecided=sum(math.isnan(trace.reward) for trace in traces),
    )


def summary(evaluation: Evaluation, *, resamples: int = 10_000) -> dict[str, Estimate]:
    """Mean of every metric over problems, with its interval.

    Args:
        evaluation: of one policy.
        resamples: of the bootstrap.

    Raises:
        SchemaError: `resamples` is below 100.
    """
    return _estimates(evaluation.values, resamples)


def paired(
    first: Evaluation, second: Evaluation, *, resamples: int = 10_000
) -> dict[str, Estimate]:
    """Differences of two policies, second - first, on the problems that they share.

    Args:
        first: of one policy.
        second: of another, on the same problems with as many responses.
        resamples: of the bootstrap.

    Raises:
        StatisticsError: the problems differ, or the responses a problem.
        SchemaError: `resamples` is below 100.
    """
    if first.names != second.names or first.k != second.k:
        common = len(set(first.names) & set(second.names))
        raise StatisticsError(
            f"a paired comparison needs the same problems and k; {common} of {len(first.names)} "
            f"and {len(second.names)} problems are shared, k is {first.k} and {second.k}. Evaluate "
            "both on one task."
        )
    return _estimates(second.values - first.values, resamples)


def reached(records: Sequence[Record], threshold: float) -> tuple[int, float] | None:
    """Steps and seconds of training until the held-out accuracy first reached a threshold.

    Args:
        records: of a run.
        threshold: of the accuracy.

    Returns:
        As of the first evaluation there, so rounded up to the next one; None: never. Seconds are
        those of the steps, evaluations left out.
    """
    seconds = 0.0
    for record in records:
        if record["kind"] == "step":
            seconds += record["seconds"]
        elif record["kind"] == "evaluation" and record["accuracy"] >= threshold:
            return int(record["step"]), seconds
    return None


def _metrics(group: Sequence[Trace], task: Task) -> list[float]:
    """METRICS of one problem."""
    right = np.array([trace.reward > 0 for trace in group])
    labels = [trace.label for trace in group]
    lucky = np.mean([r and label == Label.ERROR for r, label in zip(right, labels, strict=True)])
    known = Label.UNLABELED not in labels
    return [
        float(right.mean()),
        float(right.any()),
        _majority([task.answer(trace.text) for trace in group], right.tolist()),
        float(lucky) if known else math.nan,
        float(np.mean([len(trace.ids or ()) for trace in group])),
        float(np.mean([trace.finish == Finish.LENGTH for trace in group])),
    ]


def _majority(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """Right responses are one answer, however written; each wrong answer is one of its own."""
    votes = Counter(
        True if good else answer
        for answer, good in zip(answers, right, strict=True)
        if good or answer is not None
    )
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    return (True in tied) / len(tied)


def _estimates(
    values: Float64[np.ndarray, "problem metric"], resamples: int
) -> dict[str, Estimate]:
    """Means over problems; a metric that is not known for all of them has none."""
    known = np.isfinite(values)
    sums = np.stack([np.where(known, values, 0.0), known.astype(np.float64)], axis=-1)

    def means(totals: Float64[np.ndarray, "row metric 2"]) -> Float64[np.ndarray, "row metric"]:
        counts = np.where(totals[..., 1] > 0, totals[..., 1], np.nan)
        return np.asarray(totals[..., 0] / counts)

    plan = Resampling(len(values), resamples)
    found = intervals(resample(sums, means, plan=plan, present=known))
    counts: Int64[np.ndarray, " metric"] = known.sum(axis=0)
    return {
        name: Estimate(
            float(found.estimate[i]),
            float(found.low[i]),
            float(found.high[i]),
            float(found.error[i]),
            int(counts[i]),
        )
        for i, name in enumerate(METRICS)
    }
