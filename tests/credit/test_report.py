"""What weights do to a batch, worked out by hand."""

import math

import numpy as np
import pytest

from tokensense.credit.report import WEIGHT_NUMBERS, weight_numbers


def test_numbers_worked_out_by_hand():
    # rollouts of 3 and 1 tokens; weights 1.5, 1, .5 and 1
    weights = np.array([1.5, 1.0, 0.5, 1.0])
    found = weight_numbers(weights, np.array([0.1, 0.2, 0.3, 9.0]), np.array([3, 1]))
    assert found["tokens"] == 4
    assert (found["mean"], found["least"], found["largest"]) == (1.0, 0.5, 1.5)
    assert found["effective"] == pytest.approx(16 / (4 * (2.25 + 1 + 0.25 + 1)))
    assert found["below_uniform"] == 0.25
    assert found["moved"] == 0.125  # 1/8 of the credit went from token 2 to token 0
    # shares of rank 5/6, 3/6, 1/6, 1/2 against 1/6, 3/6, 5/6, 1/2
    assert found["with_surprisal"] == pytest.approx(-1.0)
    assert found.keys() == WEIGHT_NUMBERS.keys()


def test_differences_between_rollouts_make_no_correlation():
    # Within each rollout weight and surprisal go apart; between rollouts they go together.
    weights, surprisal = np.array([1.0, 1.2, 2.0, 2.2]), np.array([0.2, 0.1, 0.9, 0.8])
    assert weight_numbers(weights, surprisal, np.array([2, 2]))["with_surprisal"] == -1.0


@pytest.mark.parametrize("weights", [np.ones(3), np.array([1.0, 1.0 + 1e-15, 1.0])])
def test_equal_weights_correlate_with_nothing(weights):
    found = weight_numbers(weights, np.array([0.1, 0.2, 0.3]), np.array([3]))
    assert math.isnan(found["with_surprisal"])
    assert found["effective"] == pytest.approx(1.0)
    assert found["below_uniform"] == 0


@pytest.mark.parametrize("weights", [None, np.empty(0)])
def test_where_there_are_no_weights_there_are_no_numbers(weights):
    found = weight_numbers(weights, np.empty(0), np.empty(0, np.int64))
    assert found.pop("tokens") == 0
    assert all(math.isnan(value) for value in found.values())


def test_no_weight_at_all_has_no_effective_tokens():
    found = weight_numbers(np.zeros(2), np.array([0.1, 0.2]), np.array([2]))
    assert math.isnan(found["effective"])
