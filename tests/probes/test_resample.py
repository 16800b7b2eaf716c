"""Values of prefixes against the closed form of a bigram policy; allocation; refusals."""

import numpy as np
import pytest

from tests.bigram import bigram_logp, bigram_policy
from tokensense.errors import SchemaError, StatisticsError
from tokensense.probes.resample import Start, Trials, resample

POLICY = bigram_policy()
TABLE = np.exp(bigram_logp(POLICY))
GOOD = np.arange(0, 260, 2)  # a response is right where its last token is one of these


def judged(place, ids):
    return ids[-1] in GOOD


def some_starts(count=6, length=5):
    rng = np.random.default_rng(0)
    return [
        Start((int(rng.integers(260)),), tuple(rng.integers(0, 260, length).tolist()), (0, 2, 4))
        for _ in range(count)
    ]


def run(starts, judge=judged, **options):
    plan = Trials(**({"max_new_tokens": 1, "first": 8, "most": 8, "seed": 1} | options))
    return resample(POLICY, starts, judge, ends=(), plan=plan)


def truth(starts):
    last = [(*s.prompt, *s.response)[cut] for s in starts for cut in s.cuts]
    return TABLE[last][:, GOOD].sum(1)


def test_values_are_those_of_the_closed_form():
    starts = some_starts()
    found = run(starts, first=2000, most=2000)
    assert found["position"].values.tolist() == [0, 2, 4] * 6
    expected = truth(starts)
    spread = np.sqrt(expected * (1 - expected) / 2000)
    assert (np.abs(found["value"].values - expected) < 4.5 * spread + 1e-9).all()
    gains = np.diff(found["value"].values.reshape(6, 3), axis=1).ravel()
    np.testing.assert_allclose(found["gain"], gains)
    np.testing.assert_allclose(found["half"].mean("side"), found["value"])
    assert found.attrs["accuracy"] == pytest.approx(found["value"].values[::3].mean())


def test_reliability_is_that_of_the_halves_and_grows_with_trials():
    starts = some_starts(30)
    few, many = (run(starts, first=k, most=k).attrs["reliability"] for k in (4, 400))
    found = run(starts, first=4, most=4)
    halves = np.diff(found["half"].values.reshape(2, 30, 3), axis=2).reshape(2, -1)
    r = np.corrcoef(halves)[0, 1]
    assert few == pytest.approx(2 * r / (1 + r))
    assert many > few
    assert many > 0.9


def test_further_rounds_go_to_the_less_certain_half_and_stop_at_the_limit():
    starts = some_starts(4)
    found = run(starts, most=20, reliability=1.1)
    trials = found["trials"].values
    assert set(trials) <= {8, 16}
    assert (trials == 16).sum() >= 6
    assert trials.max() <= 20
    certain = found["error"].values[trials == 8]
    assert certain.size == 0 or certain.max() < 0.2
    same = run(starts, most=20, reliability=1.1)
    assert same.identical(found)
    assert run(starts, most=20, reliability=-1.0)["trials"].values.tolist() == [8] * 12


def test_the_end_of_a_response_has_its_own_reward_without_trials():
    starts = [s._replace(cuts=(0, 5), right=i % 2 == 0) for i, s in enumerate(some_starts(4))]
    found = run(starts)
    at_end = found.isel(cut=found["position"].values == 5)
    assert at_end["value"].values.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert at_end["trials"].values.tolist() == [0] * 4
    assert at_end["error"].values.tolist() == [0.0] * 4


def test_what_cannot_be_judged_counts_as_not_right_and_is_counted():
    starts = some_starts()
    plain = run(starts, most=200, first=200)
    found = run(
        starts, lambda place, ids: None if ids[-1] % 4 == 0 else judged(place, ids),
        most=200, first=200,
    )  # fmt: skip
    assert (found["value"].values <= plain["value"].values).all()
    lost = (plain["value"] - found["value"]) * 200
    np.testing.assert_allclose(found["undecided"], lost)


@pytest.mark.parametrize("always", [True, False])
def test_a_policy_that_is_nearly_always_right_or_wrong_is_refused(always):
    with pytest.raises(StatisticsError, match="not estimable"):
        run(some_starts(), lambda place, ids: always)


@pytest.mark.parametrize("cuts", [(2, 0), (0, 0), (0, 6), (-1, 2)])
def test_cuts_outside_the_response_are_refused(cuts):
    with pytest.raises(SchemaError, match="those of start 1"):
        run([some_starts(1)[0], some_starts(1)[0]._replace(cuts=cuts)])


@pytest.mark.parametrize("counts", [{"first": 3}, {"first": 0}, {"first": 8, "most": 4}])
def test_counts_without_two_halves_are_refused(counts):
    with pytest.raises(SchemaError):
        Trials(1, **counts)
