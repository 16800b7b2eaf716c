import math
from dataclasses import replace

import numpy as np
import pytest

from tokensense.errors import StatisticsError
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Finish, Label
from tokensense.trainer.evaluate import (
    METRICS,
    Evaluation,
    _majority,
    _metrics,
    evaluate,
    paired,
    reached,
    summary,
)


def answered(text, *, right, label=Label.NO_ERROR, finish=Finish.STOP, ids=(1, 2)):
    return Trace("p", "p/0", text, ids=ids, reward=float(right), label=label, finish=finish)


def made(values, k=4):
    """An evaluation whose every metric is `values`, one a problem."""
    columns = np.tile(np.asarray(values, dtype=float)[:, None], len(METRICS))
    return Evaluation(tuple(f"p{i}" for i in range(len(values))), columns, k, 0)


def test_metrics_of_one_problem(task):
    group = [
        answered("ans 7", right=True),
        answered("ans 7", right=True, label=Label.ERROR, ids=(1, 2, 3, 4)),
        answered("ans 3", right=False, label=Label.ERROR),
        answered("ans", right=False, label=Label.ERROR, finish=Finish.LENGTH),
    ]
    found = dict(zip(METRICS, _metrics(group, task), strict=True))
    assert found == {
        "mean": 0.5,
        "pass": 1.0,
        "majority": 1.0,
        "lucky": 0.25,
        "length": 2.5,
        "capped": 0.25,
    }


def test_where_steps_are_not_known_luck_is_not_either(task):
    group = [answered("ans 7", right=True, label=Label.UNLABELED)]
    assert math.isnan(dict(zip(METRICS, _metrics(group, task), strict=True))["lucky"])


@pytest.mark.parametrize(
    ("answers", "right", "decided"),
    [
        (["7", "7", "3"], [1, 1, 0], 1.0),
        (["7", "3", "3"], [1, 0, 0], 0.0),
        (["7", "3"], [1, 0], 0.5),  # a tie of two
        (["7", "3", "4"], [1, 0, 0], 1 / 3),
        (["1/2", "0.5", "3"], [1, 1, 0], 1.0),  # right answers are one, however written
        ([None, None, "7"], [0, 0, 1], 1.0),  # no answer, no vote
        ([None, None], [0, 0], 0.0),
    ],
)
def test_the_majority(answers, right, decided):
    assert _majority(answers, [bool(r) for r in right]) == pytest.approx(decided)


def test_a_policy_is_judged_on_the_same_problems_and_numbers_each_time(policy, task):
    one, again = (evaluate(policy, task, k=2, max_new_tokens=32) for _ in range(2))
    assert one.names == tuple(problem.name for problem in task.held_out)
    assert one.values.tolist() == again.values.tolist()
    greedy = evaluate(policy, task, k=2, problems=3, max_new_tokens=32, temperature=0.0)
    assert greedy.names == one.names[:3]
    assert set(greedy["mean"].tolist()) <= {0.0, 1.0}


def test_undecided_responses_count_as_wrong_and_are_counted(policy, task):
    def grade(traces, problems, encoder):
        del problems, encoder
        return [
            replace(trace, reward=1.0 if place % 2 else math.nan)
            for place, trace in enumerate(traces)
        ]

    found = evaluate(policy, task._replace(grade=grade), k=2, max_new_tokens=32)
    assert found.undecided == len(task.held_out)
    assert found["mean"].tolist() == [0.5] * len(task.held_out)


def test_the_interval_is_over_problems():
    # 40 problems, half of them solved: standard error sqrt(.25 / 40).
    found = summary(made([0.0, 1.0] * 20))["mean"]
    assert found.estimate == 0.5
    assert found.problems == 40
    assert found.error == pytest.approx(math.sqrt(0.25 / 40), rel=0.03)
    assert found.low == pytest.approx(0.5 - 2.02 * 0.079, abs=0.02)


def test_a_paired_difference_leaves_out_what_problems_differ_in():
    # Problems of very unequal difficulty, each a little better.
    base = np.linspace(0.0, 0.8, 30)
    gain = np.where(np.arange(30) % 2, 0.1, 0.2)
    found = paired(made(base), made(base + gain))["mean"]
    assert found.estimate == pytest.approx(0.15)
    assert found.low > 0.12
    assert summary(made(base))["mean"].error > 3 * found.error


def test_only_the_same_problems_are_compared():
    with pytest.raises(StatisticsError, match=r"2 of 2 and 3 problems are shared, k is 4 and 4"):
        paired(made([0.0, 1.0]), made([0.0, 1.0, 1.0]))
    with pytest.raises(StatisticsError, match="k is 4 and 1"):
        paired(made([0.0, 1.0]), made([0.0, 1.0], k=1))


def test_a_metric_that_is_not_known_has_no_number():
    evaluation = made([0.0, 1.0] * 10)
    evaluation.values[:, METRICS.index("lucky")] = math.nan
    found = summary(evaluation)
    assert math.isnan(found["lucky"].estimate)
    assert found["lucky"].problems == 0
    assert found["mean"].estimate == 0.5


def test_nothing_held_out_is_refused(policy, task):
    with pytest.raises(StatisticsError, match=r"needs held-out problems; .* has 0 and None"):
        evaluate(policy, task._replace(held_out=()))


def test_steps_and_seconds_to_a_threshold_leave_evaluations_out():
    records = [
        {"kind": "evaluation", "step": 0, "accuracy": 0.2, "seconds": 100.0},
        {"kind": "step", "step": 1, "seconds": 2.0},
        {"kind": "step", "step": 2, "seconds": 3.0},
        {"kind": "evaluation", "step": 2, "accuracy": 0.5, "seconds": 100.0},
    ]
    assert reached(records, 0.5) == (2, 5.0)
    assert reached(records, 0.2) == (0, 0.0)
    assert reached(records, 0.6) is None
