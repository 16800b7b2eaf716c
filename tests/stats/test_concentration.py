import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tests.stats.builders import made_up_tokens
from tokensense.errors import SchemaError
from tokensense.stats.concentration import agreement, concentration, top_membership
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample

SAMPLE = read_sample(made_up_tokens(problems=10, group=2, length=(11, 25), frames=1, families=1))
PLAN = Resampling(10, 200, 0)


def rows(values):
    return np.split(np.asarray(values, float), np.cumsum(SAMPLE.length)[:-1])


def one(values, statistic):
    found = concentration({"x": np.asarray(values)}, SAMPLE, plan=PLAN, attrs={})
    return found.estimate.sel(score="x", statistic=statistic).item()


def gini(x):
    x = np.abs(x)
    return np.abs(x[:, None] - x[None]).sum() / (2 * len(x) ** 2 * x.mean())


def test_agrees_with_the_plain_definitions():
    values = np.random.default_rng(0).normal(size=SAMPLE.kind.size).round(1)
    sizes = [np.abs(row) for row in rows(values)]
    assert one(values, "gini") == pytest.approx(np.mean([gini(x) for x in sizes]))
    effective = [x.sum() ** 2 / (len(x) * (x**2).sum()) for x in sizes]
    assert one(values, "effective") == pytest.approx(np.mean(effective))
    top = [np.sort(x)[-int(np.ceil(0.1 * len(x))) :].sum() / x.sum() for x in sizes]
    assert one(values, "top_tenth_mass") == pytest.approx(np.mean(top))


def test_equal_and_single_weights_are_the_ends():
    ones = np.ones(SAMPLE.kind.size)
    assert one(ones, "gini") == pytest.approx(0.0, abs=1e-12)
    assert one(ones, "effective") == pytest.approx(1.0)
    spike = np.zeros(SAMPLE.kind.size)
    spike[np.cumsum(SAMPLE.length) - 1] = -3.0
    assert one(spike, "gini") == pytest.approx(np.mean(1 - 1 / SAMPLE.length))
    assert one(spike, "effective") == pytest.approx(np.mean(1 / SAMPLE.length))
    assert one(spike, "top_tenth_mass") == 1.0


def test_mass_by_kind_is_that_of_the_plain_sums():
    values = np.random.default_rng(1).exponential(size=SAMPLE.kind.size)
    values[SAMPLE.kind == "digit"] = 0.0
    found = concentration({"x": values}, SAMPLE, plan=PLAN, attrs={})
    for kind in np.unique(SAMPLE.kind):
        own = SAMPLE.kind == kind
        at = found.lift.sel(score="x", kind=kind)
        if kind == "digit":  # no mass: no log, and said so
            assert np.isnan(at)
            assert found.lift_method.sel(score="x", kind=kind) == Method.NONE_UNDEFINED
            continue
        expected = np.log(values[own].sum() / values.sum() / own.mean())
        assert at.item() == pytest.approx(expected)


def test_responses_without_mass_or_with_gaps_are_left_out_and_counted():
    values = np.random.default_rng(2).exponential(size=SAMPLE.kind.size)
    whole = rows(values.copy())
    start = np.cumsum(SAMPLE.length) - SAMPLE.length
    values[start[0]] = np.nan
    values[start[1]] = -np.inf
    values[start[2] : start[3]] = 0.0
    found = concentration({"x": values}, SAMPLE, plan=PLAN, attrs={})
    assert found.n_rollouts.item() == 17
    assert found.estimate.sel(statistic="gini").item() == pytest.approx(
        np.mean([gini(x) for x in whole[3:]])
    )
    nothing = concentration({"x": np.zeros_like(values)}, SAMPLE, plan=PLAN, attrs={})
    assert (nothing.method == Method.NONE_UNDEFINED).all()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_top_membership_is_what_a_random_tie_break_expects(values):
    # A top of one token: all orders of the tied largest, by counting.
    found = top_membership(np.array(values, float), np.array([len(values)]))
    largest = [v == max(values) for v in values]
    np.testing.assert_allclose(found, np.array(largest) / sum(largest))


def test_top_membership_of_a_larger_top_with_ties_at_its_border():
    values = np.array([5.0, 4, 4, 4, *[0.0] * 21])  # 25 tokens: a top of three
    found = top_membership(values, np.array([25]))
    np.testing.assert_allclose(found, [1, *[2 / 3] * 3, *[0] * 21], atol=1e-12)
    places = [set(c) | {0} for c in itertools.combinations((1, 2, 3), 2)]
    overlap = np.mean([len(a & b) / 3 for a in places for b in places])
    assert (found**2).sum() / 3 == pytest.approx(overlap)


def test_agreement_is_that_of_scipy_and_of_counting():
    rng = np.random.default_rng(3)
    x = rng.normal(size=SAMPLE.kind.size).round(1)
    y = (x + rng.normal(size=x.size)).round(1)
    untied = rng.permutation(x.size).astype(float), rng.permutation(x.size).astype(float)
    found = agreement({"x": x, "y": y, "a": untied[0], "b": untied[1]}, SAMPLE, plan=PLAN, attrs={})
    at = found.estimate.sel(pair="x ~ y")
    expected = np.mean([spearmanr(*pair).statistic for pair in zip(rows(x), rows(y), strict=True)])
    assert at.sel(statistic="rank_agreement").item() == pytest.approx(expected)
    shares, chance = [], []
    for one_row, other in zip(rows(untied[0]), rows(untied[1]), strict=True):
        k = int(np.ceil(0.1 * len(one_row)))
        tops = [set(np.argsort(row)[-k:]) for row in (one_row, other)]
        shares.append(len(tops[0] & tops[1]) / k)
        chance.append(k / len(one_row))
    at = found.estimate.sel(pair="a ~ b")
    assert at.sel(statistic="top_overlap").item() == pytest.approx(np.mean(shares))
    assert at.sel(statistic="top_overlap_by_chance").item() == pytest.approx(np.mean(chance))
    assert found.sizes["pair"] == 6
    assert (found["first"].values[0], found["second"].values[0]) == ("x", "y")


def test_the_same_score_agrees_wholly_and_its_opposite_not_at_all():
    x = np.random.default_rng(4).permutation(SAMPLE.kind.size).astype(float)
    at = agreement({"x": x, "same": 3 * x + 1, "less": -x}, SAMPLE, plan=PLAN, attrs={}).estimate
    assert at.sel(pair="x ~ same").values[:2] == pytest.approx([1.0, 1.0])
    assert at.sel(pair="x ~ less").values[:2] == pytest.approx([-1.0, 0.0])


def test_a_constant_score_has_no_rank_and_is_said():
    x = np.random.default_rng(5).normal(size=SAMPLE.kind.size)
    found = agreement({"x": x, "flat": np.ones_like(x)}, SAMPLE, plan=PLAN, attrs={})
    assert found.n_rollouts.item() == 0
    assert (found.method == Method.NONE_UNDEFINED).all()


def test_one_problem_has_numbers_and_no_interval():
    sample = read_sample(made_up_tokens(problems=1, frames=1, families=1))
    x = np.random.default_rng(6).normal(size=sample.kind.size)
    found = concentration({"x": x}, sample, plan=Resampling(1, 100, 0), attrs={})
    assert np.isfinite(found.estimate).all()
    assert np.isnan(found.interval).all()
    assert (found.method == Method.NONE_FEW_PROBLEMS).all()


def test_what_does_not_fit_is_refused():
    x = np.zeros(3)
    with pytest.raises(SchemaError, match="one a token"):
        concentration({"x": x}, SAMPLE, plan=PLAN, attrs={})
    whole = np.zeros(SAMPLE.kind.size)
    with pytest.raises(SchemaError, match="two scores or more"):
        agreement({"x": whole}, SAMPLE, plan=PLAN, attrs={})
