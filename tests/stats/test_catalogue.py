import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import statistics as reference
from tokensense.stats.catalogue import CATALOGUE, correlation, ratio
from tokensense.stats.shifts import Evidence, token_columns


def made_up(seed=0, rollouts=6, scale=1.0):
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 30, rollouts)
    n = int(length.sum())
    middle = scale * rng.standard_t(3, n) * 0.1
    half = scale * rng.standard_t(3, n) * 0.04
    return Evidence(
        positive=(middle + half).round(3),  # ties and zeros occur
        negative=(middle - half).round(3),
        surprisal=rng.exponential(1, n).round(2),
        distance=rng.random(n).round(3),
        floor=rng.random(n) * 0.2,
        length=length,
    )


def values(evidence):
    sums = {name: column.sum(keepdims=True) for name, column in token_columns(evidence)}
    return {name: statistic.finish(sums).item() for name, statistic in CATALOGUE.items()}


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_slow_version(seed):
    evidence = made_up(seed)
    rollout = np.repeat(np.arange(evidence.length.size), evidence.length)
    expected = reference.pair_statistics(*evidence[:4], rollout, floor=evidence.floor)
    found = values(evidence)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def test_opposite_shifts_give_no_common_part():
    z = np.array([0.4, -0.2, 0.1, -0.3])
    found = values(Evidence(z, -z, np.arange(4.0), np.ones(4), np.zeros(4), np.array([4])))
    assert found["same_direction"] == 0
    assert found["reversal"] == 1
    assert found["contrast_variance_share"] == 1
    assert found["correlation"] == pytest.approx(-1)
    assert found["same_direction_if_gaussian"] == pytest.approx(0, abs=1e-7)


def test_equal_shifts_give_no_contrast():
    z = np.array([0.4, -0.2, 0.1, -0.3])
    found = values(Evidence(z, z, np.arange(4.0), np.ones(4), np.zeros(4), np.array([4])))
    assert found["same_direction"] == 1
    assert found["contrast_variance_share"] == 0
    assert found["mean_absolute_contrast"] == 0
    assert found["rank_correlation"] == pytest.approx(1)


@given(st.integers(0, 50), st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_swapping_the_levels_and_scaling(seed, factor):
    given_, other = made_up(seed), made_up(seed)
    swapped = other._replace(positive=other.negative, negative=other.positive)
    scaled = given_._replace(
        positive=given_.positive * factor,
        negative=given_.negative * factor,
        floor=given_.floor * factor,
    )
    plain, flipped, larger = values(given_), values(swapped), values(scaled)
    for name, value in plain.items():
        sign = -1 if name == "mean_contrast" else 1
        assert flipped[name] == pytest.approx(sign * value, abs=1e-9), name
        if "0.05" not in name:
            unit = factor if CATALOGUE[name].units == "nats" else 1
            assert larger[name] == pytest.approx(unit * value, abs=1e-9), name


@given(st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_flipping_the_sign_of_both_shifts(seed):
    evidence = made_up(seed)
    flipped = values(evidence._replace(positive=-evidence.positive, negative=-evidence.negative))
    for name, value in values(evidence).items():
        sign = -1 if name in ("mean_shift", "mean_contrast") else 1
        assert flipped[name] == pytest.approx(sign * value, abs=1e-9), name


def test_without_variation_a_correlation_has_no_value():
    z = np.full(5, 0.1)
    found = values(Evidence(z, z, np.arange(5.0), np.ones(5), np.zeros(5), np.array([5])))
    assert math.isnan(found["correlation"])
    assert math.isnan(found["sensitivity_to_surprisal"])
    assert math.isnan(found["contrast_variance_share"])
    assert math.isnan(found["same_direction_if_gaussian"])
    assert found["same_direction"] == 1


def test_a_ratio_over_nothing_has_no_value():
    np.testing.assert_array_equal(ratio(np.array([1.0, 0.0]), np.array([2.0, 0.0])), [0.5, np.nan])


def test_correlation_is_held_to_its_range():
    sums = {"tokens": np.array([2.0]), "v_x": np.zeros(1), "v_y": np.zeros(1)}
    sums |= {"v_xx": np.array([2.0]), "v_yy": np.array([2.0]), "v_xy": np.array([2.0 + 1e-12])}
    assert correlation(sums, "v").item() == 1.0


def test_every_statistic_says_its_unit_and_denominator():
    columns = dict(token_columns(made_up()))
    for name, statistic in CATALOGUE.items():
        assert statistic.units in ("1", "nats"), name
        assert statistic.denominator in columns, name
        assert statistic.meaning, name
        assert " " not in name
