import math

import pytest

from tokensense.trainer.health import findings, has_collapsed, repeated_share

HEALTHY = {
    "entropy": 2.0,
    "capped": 0.0,
    "repetition": 0.01,
    "gradient_norm": 0.1,
    "clip_low": 0.0,
    "clip_high": 0.0,
    "effective_tokens": 0.8,
    "updates": 1.0,
    "reward": 0.3,
}


def steps(*changes):
    """Steps that are healthy but for what is said of each."""
    return [{"kind": "step", "step": n, **HEALTHY, **change} for n, change in enumerate(changes, 1)]


def evaluations(*accuracies):
    return [
        {"kind": "evaluation", "step": 10 * n, "accuracy": accuracy}
        for n, accuracy in enumerate(accuracies)
    ]


def signs(records):
    return [(finding.sign, finding.collapse) for finding in findings(records)]


def test_a_healthy_run_has_no_findings():
    assert signs(steps(*[{}] * 10)) == []
    assert signs(evaluations(0.2, 0.3)) == []


@pytest.mark.parametrize(
    ("change", "sign", "collapse"),
    [
        ({"entropy": 0.5}, "entropy", False),
        ({"entropy": 0.19}, "entropy", True),
        ({"capped": 0.6}, "length", False),
        ({"capped": 0.9}, "length", True),
        ({"repetition": 0.5}, "repetition", False),
        ({"clip_low": 0.15, "clip_high": 0.1}, "clipping", False),
        ({"gradient_norm": 1.5}, "gradient", False),
        ({"effective_tokens": 0.01}, "tokens", False),
    ],
)
def test_one_sign_is_found_alone(change, sign, collapse):
    assert signs(steps(*[{}] * 6, change)) == [(sign, collapse)]


def test_the_reward_collapses_after_five_low_evaluations():
    low = [0.09] * 4
    assert signs(evaluations(0.4, *low)) == []
    assert signs(evaluations(0.4, 0.3, *low)) == []
    assert signs(evaluations(0.4, *low, 0.0999)) == [("reward", True)]
    assert signs(evaluations(0.4, *low, 0.101)) == []
    assert signs(evaluations(0.4, *low, 0.5, 0.09)) == []


def test_steps_without_an_update_are_told_after_five():
    idle = {"updates": 0.0, "gradient_norm": math.nan, "effective_tokens": math.nan}
    idle |= {"clip_low": math.nan, "clip_high": math.nan}
    assert signs(steps({}, *[idle] * 4)) == []
    assert signs(steps({}, *[idle] * 5)) == [("idle", False)]


def test_a_step_without_rollouts_has_no_findings():
    numbers = [name for name in HEALTHY if name not in ("updates", "reward")]
    empty = {**dict.fromkeys(numbers, math.nan), "updates": 0.0}
    assert signs(steps({}, empty)) == signs(steps(empty, {})) == []


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ([{"gradient_norm": 5.0}], "far larger"),
        ([{"entropy": 0.1}], "deterministic"),
        ([{"capped": 1.0}], "no longer end"),
        ([{"entropy": 5.0}], "spreads probability"),
        ([{}], "not shown"),
    ],
)
def test_the_likely_cause_is_what_moved_first(before, cause):
    records = [*evaluations(0.4), *steps({}, *before), *evaluations(0.4, *[0.0] * 5)[1:]]
    (finding,) = findings(records)
    assert cause in finding.message
    assert "0.400" in finding.message


def test_a_run_has_collapsed_where_a_finding_says_so():
    records = steps({}, {})
    assert has_collapsed(records) is None
    warned = {"kind": "finding", "step": 1, "sign": "length", "collapse": False, "message": ""}
    assert has_collapsed([*records, warned]) is None
    assert has_collapsed([*records, warned, {**warned, "step": 2, "collapse": True}]) == 2


def test_repeated_share_of_short_and_constant_responses():
    assert repeated_share([1, 2, 3]) == 0.0
    assert repeated_share([5] * 7) == pytest.approx(3 / 4)
