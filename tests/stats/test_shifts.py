import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tokensense.stats import shifts

SIZES = st.floats(-4, 4, allow_nan=False).map(lambda x: round(x, 4))


def vector(n=8):
    return hnp.arrays(np.float64, n, elements=SIZES)


def evidence(positive, negative, **changes):
    positive, negative = np.asarray(positive, float), np.asarray(negative, float)
    n = positive.size
    given = {
        "surprisal": np.linspace(0.1, 1.0, n),
        "distance": np.full(n, 0.5),
        "floor": np.full(n, 0.2),
        "length": np.array([n]),
    }
    return shifts.Evidence(positive, negative, **{**given, **changes})


def test_parts_of_two_shifts():
    positive, negative = np.array([3.0, -1.0, 0.5]), np.array([1.0, 2.0, -2.5])
    assert shifts.common(positive, negative).tolist() == [2.0, 0.5, -1.0]
    assert shifts.contrast(positive, negative).tolist() == [1.0, -1.5, 1.5]
    assert shifts.sensitivity(positive, negative).tolist() == [3.0, 2.0, 2.5]
    assert shifts.absolute_shift(positive, negative).tolist() == [2.0, 1.5, 1.5]


@given(vector(), vector())
def test_sensitivity_is_common_plus_contrast(positive, negative):
    parts = np.abs(shifts.common(positive, negative)) + np.abs(shifts.contrast(positive, negative))
    np.testing.assert_allclose(shifts.sensitivity(positive, negative), parts, atol=1e-12)


@given(vector(), vector(), st.floats(0.01, 100))
def test_parts_scale_and_swap(positive, negative, factor):
    for part in (shifts.common, shifts.contrast, shifts.sensitivity, shifts.absolute_shift):
        scaled = part(positive * factor, negative * factor)
        np.testing.assert_allclose(scaled, factor * part(positive, negative), atol=1e-9)
    np.testing.assert_array_equal(
        shifts.contrast(negative, positive), -shifts.contrast(positive, negative)
    )
    np.testing.assert_array_equal(
        shifts.sensitivity(negative, positive), shifts.sensitivity(positive, negative)
    )


def test_distance_is_the_norm_of_onehot_minus_p():
    p = np.array([0.7, 0.2, 0.1])
    for token in range(3):
        onehot = np.eye(3)[token]
        found = shifts.onehot_distance(np.log(p[token : token + 1]), np.array([np.sum(p**2)]))
        assert found.item() == pytest.approx(np.linalg.norm(onehot - p), abs=1e-12)
        # sqrt(1 - 2 p + sum p^2), the form in the notes
        assert found.item() == pytest.approx(math.sqrt(1 - 2 * p[token] + np.sum(p**2)), abs=1e-12)


def test_distance_stays_within_what_the_probability_allows():
    # p = 1 - 1e-9 in fp32: the stored sum of squares is off by more than the distance itself.
    logp = np.array([-1e-9, -1e-9, 0.0, 1e-7])
    found = shifts.onehot_distance(logp, np.array([1.0 + 1e-7, 0.9, 1.0, 1.0]))
    np.testing.assert_allclose(found, [math.sqrt(2) * 1e-9, 1e-9, 0.0, 0.0], rtol=1e-6)


@given(hnp.arrays(np.float64, 5, elements=st.floats(0.01, 1)))
def test_distance_of_any_distribution(weights):
    p = weights / weights.sum()
    found = shifts.onehot_distance(np.log(p), np.full(5, np.sum(p**2)))
    np.testing.assert_allclose(found, np.linalg.norm(np.eye(5) - p, axis=1), atol=1e-7)


def test_standardized_shift_divides_by_the_distance_where_it_is_resolved():
    shift = np.array([1.0, -2.0, 1.0, 1.0])
    distance = np.array([0.5, 1.0, 0.001, 0.000999])
    found = shifts.standardized_shift(shift, distance)
    np.testing.assert_array_equal(found, [2.0, -2.0, 1000.0, np.nan])


def test_direction_columns_count_moved_same_and_opposite():
    # token:      same,  opposite, one still, small same, at .05, none, tiny same, above .05
    positive = [0.3, 0.3, 0.3, 0.04, 0.05, 0.0, 1e-200, 0.0505]
    negative = [0.1, -0.1, 0.0, 0.01, 0.05, 0.0, 1e-200, -0.01]
    columns = dict(shifts.token_columns(evidence(positive, negative)))
    assert columns["tokens"].tolist() == [1.0] * 8
    assert columns["affected_any"].tolist() == [1, 1, 1, 1, 1, 0, 1, 1]
    assert columns["same_any"].tolist() == [1, 0, 0, 1, 1, 0, 1, 0]
    assert columns["reversed_any"].tolist() == [0, 1, 0, 0, 0, 0, 0, 1]
    assert columns["affected_floor"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert columns["same_floor"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert columns["reversed_floor"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert columns["affected_fixed"].tolist() == [1, 1, 1, 0, 0, 0, 0, 1]  # .05 is not above .05
    assert columns["same_fixed"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert columns["reversed_fixed"].tolist() == [0, 1, 0, 0, 0, 0, 0, 1]
    assert columns["floor_tokens"].tolist() == [1.0] * 8


def test_a_shift_at_the_floor_is_not_above_it():
    columns = dict(
        shifts.token_columns(evidence([0.2, 0.2], [0.1, 0.1], floor=np.array([0.2, 0.19])))
    )
    assert columns["affected_floor"].tolist() == [0, 1]


def test_two_negative_shifts_go_the_same_way():
    columns = dict(shifts.token_columns(evidence([-0.3, -0.3], [-0.1, 0.1])))
    assert columns["same_any"].tolist() == [1, 0]
    assert columns["reversed_any"].tolist() == [0, 1]


def test_no_floor_means_nothing_is_above_it():
    columns = dict(shifts.token_columns(evidence([9.0], [9.0], floor=np.array([np.nan]))))
    assert columns["affected_floor"].tolist() == [0]
    assert columns["floor_tokens"].tolist() == [0]


def test_size_columns():
    given = evidence([0.3, -0.4], [0.1, 0.2], distance=np.array([0.5, 0.0001]))
    columns = dict(shifts.token_columns(given))
    np.testing.assert_allclose(columns["shift"], [0.2, -0.1])
    np.testing.assert_allclose(columns["contrast"], [0.1, -0.3])
    np.testing.assert_allclose(columns["absolute"], [0.2, 0.3])
    np.testing.assert_allclose(columns["absolute_common"], [0.2, 0.1])
    np.testing.assert_allclose(columns["absolute_contrast"], [0.1, 0.3])
    np.testing.assert_allclose(columns["sensitivity"], [0.3, 0.4])
    np.testing.assert_allclose(columns["standard"], [0.4, 0.0])
    assert columns["standard_tokens"].tolist() == [1, 0]


def test_squares_are_about_the_mean_of_each_trajectory():
    # two trajectories: m = (1, 3), (10,); d = (0, 2), (5,)
    positive, negative = [1.0, 5.0, 15.0], [1.0, 1.0, 5.0]
    columns = dict(shifts.token_columns(evidence(positive, negative, length=np.array([2, 1]))))
    assert columns["common_squares"].tolist() == [1.0, 1.0, 0.0]
    assert columns["contrast_squares"].tolist() == [1.0, 1.0, 0.0]


def test_product_columns_are_standardized_on_the_whole_sample():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0, 8.0])
    columns = shifts.product_columns("value", x, y)
    step = math.sqrt(1.5)  # 1 / standard deviation of (1, 2, 3)
    np.testing.assert_allclose(columns["value_x"], [-step, 0, step], atol=1e-12)
    half = math.sqrt(0.5)  # y - mean = (-1, -1, 2), standard deviation sqrt 2
    np.testing.assert_allclose(columns["value_y"], [-half, -half, 2 * half])
    np.testing.assert_allclose(columns["value_xx"], [1.5, 0, 1.5], atol=1e-12)
    np.testing.assert_allclose(columns["value_yy"], [0.5, 0.5, 2.0])
    np.testing.assert_allclose(columns["value_xy"], [step * half, 0, step * 2 * half], atol=1e-12)


def test_what_does_not_vary_gives_zeros_and_no_warning():
    columns = shifts.product_columns("value", np.full(3, 0.1), np.arange(3.0))
    assert columns["value_x"].tolist() == [0, 0, 0]
    assert columns["value_xy"].tolist() == [0, 0, 0]


def test_winsorizing_pulls_in_both_tails_at_one_percent():
    values = np.arange(101.0)
    found = shifts.winsorized(values)
    assert (found[0], found[1], found[50], found[99], found[100]) == (1, 1, 50, 99, 99)


def test_ranks_average_ties():
    assert shifts.ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_value_columns_are_winsorized_and_rank_columns_are_ranks():
    rng = np.random.default_rng(0)
    positive, negative = rng.standard_cauchy(200), rng.standard_cauchy(200)
    given = evidence(positive, negative, surprisal=rng.random(200))
    columns = dict(shifts.token_columns(given))
    size = shifts.sensitivity(positive, negative)
    for name, x, y in (
        ("value", shifts.winsorized(positive), shifts.winsorized(negative)),
        ("rank", shifts.ranks(positive), shifts.ranks(negative)),
        ("surprisal", shifts.ranks(size), shifts.ranks(given.surprisal)),
    ):
        for key, column in shifts.product_columns(name, x, y).items():
            np.testing.assert_array_equal(columns[key], column)


def test_no_tokens_give_empty_columns():
    columns = dict(shifts.token_columns(evidence([], [])))
    assert {column.size for column in columns.values()} == {0}
