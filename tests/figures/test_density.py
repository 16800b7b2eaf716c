import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figures.builders import points
from tokensense.figures.density import shift_density, shift_limit

NAN = np.nan


@pytest.mark.parametrize(
    ("largest", "limit"),
    [(0.0, 0.05), (0.04, 0.05), (0.06, 0.1), (0.1, 0.1), (0.11, 0.2), (3.0, 5.0), (7.0, 10.0)],
)
def test_limits_are_round_and_hold_every_point(largest, limit):
    data = points([[0.0, -largest], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]).astype(np.float64)
    data["positive"][0, 1] = -largest
    assert shift_limit(data) == pytest.approx(limit)


def test_nan_has_no_part_in_the_limit():
    assert shift_limit(points([[NAN], [NAN]], [[NAN], [0.3]])) == pytest.approx(0.5)


def test_every_token_is_counted_once_in_its_own_cell():
    #          unmoved, likelier under pos alone, outermost, not comparable
    positive = [[0.0, 2.0, -5.0, NAN], [0.0, 0.0, 0.0, 0.0]]
    negative = [[0.0, 0.0, -5.0, NAN], [0.0, 0.0, 0.0, 1.0]]
    found = shift_density(points(positive, negative), cells=5)
    verdict = found["tokens"].sel(term="verdict")
    assert float(verdict.sum()) == 3  # all but the one without shifts
    assert verdict.values[2, 2] == 1  # the middle cell
    assert verdict.values[0, 0] == 1  # on the border itself
    # asinh(2/.05)/asinh(5/.05) = 4.382/5.299 = .827 > .6, the border of the last of five cells
    assert verdict.values[4, 2] == 1
    assert np.isnan(verdict.values).sum() == 25 - 3
    assert found["tokens"].sel(term="placebo").values[2, 2] == 3


def test_counts_are_means_over_pairs():
    terms = ("verdict", "placebo", "placebo")
    found = shift_density(points([[0.0]] * 3, [[0.0]] * 3, terms=terms), cells=3)
    assert found["pairs"].values.tolist() == [1, 2]
    assert found["tokens"].values[:, 1, 1].tolist() == [1, 1]


def test_cells_are_symmetric_and_touch():
    found = shift_density(points([[3.0], [0.0]], [[0.0], [0.0]]))
    low, high = found["positive_low"].values, found["positive_high"].values
    assert (low[1:] == high[:-1]).all()
    assert (low[0], high[-1]) == (-5.0, 5.0)
    np.testing.assert_allclose(low, -high[::-1], atol=1e-12)
    assert low[30] < 0 < high[30]  # the middle one of 61


@given(st.lists(st.tuples(*[st.floats(-30, 30, width=32)] * 2), min_size=1, max_size=30))
def test_no_token_is_lost(shifts):
    positive, negative = np.array(shifts, np.float32).T
    data = points([positive, positive], [negative, negative])
    found = shift_density(data, cells=7)["tokens"].sum(("positive_cell", "negative_cell"))
    assert found.values.tolist() == [len(shifts)] * 2
