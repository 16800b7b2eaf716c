import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import statistics as reference
from tokensense.errors import StatisticsError
from tokensense.stats.floors import numerical_floor, unresolved, wording_floor

THREE = ("day", "color", "place")


def test_numerical_floor_is_the_99th_percentile_of_the_difference():
    first = np.zeros((2, 51), np.float32)
    second = np.zeros((2, 51), np.float32)
    second[0] = np.arange(51)
    second[1] = -np.arange(50, 101)
    # |differences| 0..50 and 50..100, 102 values: position .99 * 101 = 99.99, between 98 and 99
    assert numerical_floor(first, second) == pytest.approx(98.99)
    assert numerical_floor(second, first) == pytest.approx(98.99)


def test_equal_plans_have_floor_zero():
    values = np.random.default_rng(0).normal(size=20)
    assert numerical_floor(values, values) == 0.0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.zeros(3), "same tokens twice"),
        (np.array([0.0, np.nan]), "1 of 2 differences are not"),
    ],
)
def test_numerical_floor_refuses(second, message):
    with pytest.raises(StatisticsError, match=message):
        numerical_floor(np.zeros(2), second)


def test_numerical_floor_of_nothing():
    with pytest.raises(StatisticsError, match="same tokens twice"):
        numerical_floor(np.zeros(0), np.zeros(0))


@pytest.mark.parametrize("tokens", [1, 3, 9, 10, 57, 400])
def test_wording_floor_agrees_with_the_slow_version(tokens):
    rng = np.random.default_rng(tokens)
    contrasts = rng.normal(size=(6, tokens))
    contrasts[rng.random((6, tokens)) < 0.2] = np.nan
    contrasts[:, 0] = 1.0
    distance = rng.random(tokens).round(2)  # ties
    borders, floors = reference.wording_floor(contrasts, distance)
    found = wording_floor(contrasts, distance, families=THREE * 2)
    assert found.edges.tolist() == borders
    np.testing.assert_allclose(found.floor, floors)
    assert found.tokens.sum() == np.count_nonzero(~np.isnan(contrasts))
    assert found.statement == ""
    assert found.families == ("color", "day", "place")


def test_a_token_gets_the_floor_of_its_bin():
    contrasts = np.tile(np.repeat([0.1, 0.5], 10), (3, 1))
    distance = np.repeat([0.2, 0.8], 10)
    found = wording_floor(contrasts, distance, families=THREE)
    assert found.edges.tolist() == [0.8]
    np.testing.assert_allclose(found.at(np.array([0.0, 0.79, 0.8, 1.4])), [0.1, 0.1, 0.5, 0.5])


def test_equal_certainty_makes_one_bin():
    found = wording_floor(np.full((3, 5), -0.4), np.full(5, 0.3), families=THREE)
    assert found.edges.size == 0
    np.testing.assert_allclose(found.at(np.array([0.1, 0.9])), [0.4, 0.4])


@pytest.mark.parametrize("families", [(), ("day",), ("day", "color", "day")])
def test_two_families_are_no_floor(families):
    contrasts = np.ones((len(families), 4))
    found = wording_floor(contrasts, np.ones(4), families=families)
    assert "needs 3 placebo families" in found.statement
    assert np.isnan(found.at(np.ones(4))).all()


def test_no_comparable_token_is_no_floor():
    found = wording_floor(np.full((3, 4), np.nan), np.ones(4), families=THREE)
    assert "no wording floor" in found.statement
    assert np.isnan(found.floor).all()


@given(st.integers(0, 1000), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_floor_ignores_order_and_sign_and_scales(seed, factor):
    rng = np.random.default_rng(seed)
    contrasts, distance = rng.normal(size=(3, 40)), rng.random(40).round(1)
    plain = wording_floor(contrasts, distance, families=THREE)
    order = rng.permutation(40)
    moved = wording_floor(contrasts[:, order], distance[order], families=THREE)
    other = wording_floor(-factor * contrasts, distance, families=THREE)
    np.testing.assert_array_equal(moved.floor, plain.floor)
    np.testing.assert_array_equal(moved.edges, plain.edges)
    np.testing.assert_allclose(other.floor, factor * plain.floor)


def test_five_percent_of_placebo_contrasts_exceed_their_floor():
    rng = np.random.default_rng(0)
    distance = rng.random(5000)
    contrasts = rng.normal(size=(3, 5000)) * distance
    found = wording_floor(contrasts, distance, families=THREE)
    assert np.mean(np.abs(contrasts) > found.at(distance)) == pytest.approx(0.05, abs=0.001)


def test_unresolved_is_below_the_floor():
    contrast = np.array([0.1, -0.1, 0.3, -0.3, 0.2])
    assert unresolved(contrast, np.full(5, 0.2)).tolist() == [True, True, False, False, False]
