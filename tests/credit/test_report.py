"""What weights do to a batch, worked out by hand."""

import math

import numpy as np
import pytest

from tests.credit.builders import arrays, evidence
from tokensense.credit import CATALOGUE
from tokensense.credit.report import (
    CREDIT_NUMBERS,
    WEIGHT_NUMBERS,
    credit_numbers,
    extra_passes,
    learning_value_score,
    listing,
    mass_by_kind,
    overhead,
    rank_correlations,
    twins,
    weight_numbers,
)


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


def test_gini_by_hand():
    # mean |difference| over all nine pairs of [0, 1, 3]: 2 (1 + 3 + 2) / 9, over twice the mean
    found = weight_numbers(np.array([3.0, 0.0, 1.0]), np.arange(3.0), np.array([3]))
    assert found["gini"] == pytest.approx(12 / 9 / (2 * 4 / 3))
    assert weight_numbers(np.ones(4), np.arange(4.0), np.array([4]))["gini"] == 0


def test_rotation_and_length_by_hand():
    advantage, distance = np.array([1.0, 1.0, -2.0]), np.array([1.0, 2.0, 0.5])
    length = np.array([2, 1])
    credit = np.array([0.0, 1.0, -2.0])
    found = credit_numbers(credit, advantage, distance, length=length)
    # along (1, 2, -1) and (0, 2, -1): 5 of root 6 x 5
    assert found["rotation"] == pytest.approx(math.degrees(math.acos(5 / math.sqrt(30))))
    # 1/2 a token where there are two, 1 where there is one
    assert found["with_length"] == pytest.approx(-1)
    assert found.keys() == CREDIT_NUMBERS.keys()
    same = credit_numbers(3 * advantage, advantage, distance, length=length)
    assert same["rotation"] == 0
    assert math.isnan(same["with_length"])
    against = credit_numbers(-advantage, advantage, distance, length=length)
    assert against["rotation"] == 180
    nothing = credit_numbers(0 * credit, advantage, distance, length=length)
    assert math.isnan(nothing["rotation"])


def test_mass_by_kind():
    found = mass_by_kind(np.array([1.0, -3.0, 0.0, 0.0]), np.array(["a", "b", "b", "c"]))
    assert found["a"] == {"credit": 0.25, "tokens": 0.25}
    assert found["b"] == {"credit": 0.75, "tokens": 0.5}
    assert found["c"]["credit"] == 0
    assert math.isnan(mass_by_kind(np.zeros(1), np.array(["a"]))["a"]["credit"])


def test_twins_are_pairs_that_rank_alike_within_rollouts():
    length = np.array([4, 3])
    one = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0])
    scores = {
        "one": one,
        "squared": one**2 + np.repeat([0.0, 100.0], length),  # a level of each rollout
        "turned": -one,
        "flat": np.repeat([5.0, 6.0], length) + 1e-15,
    }
    matrix = rank_correlations(scores, length)
    np.testing.assert_allclose(matrix[:3, :3], [[1, 1, -1], [1, 1, -1], [-1, -1, 1]], atol=1e-12)
    assert np.isnan(matrix[3]).all()
    found = twins(list(scores), matrix)
    assert [pair[:2] for pair in found] == [("one", "squared")]
    assert twins(list(scores), matrix, above=1.1) == []


def test_learning_value_in_units_of_uniform_credit():
    advantage, distance = np.array([1.0, 1.0]), np.array([1.0, 1.0])
    value = np.array([3.0, 1.0])
    # uniform: 4 over root 2; all on the first: 3 over 1
    found = learning_value_score(np.array([2.0, 0.0]), advantage, distance, value=value)
    assert found == pytest.approx(3 / (4 / math.sqrt(2)))
    assert learning_value_score(advantage, advantage, distance, value=value) == 1
    assert learning_value_score(-advantage, advantage, distance, value=value) == -1
    none = learning_value_score(advantage, advantage, distance, value=np.array([1.0, -1.0]))
    assert math.isnan(none)


def test_overhead_is_a_time():
    found = evidence(arrays([5]))
    assert 0 < overhead(CATALOGUE["optw"], found, repeats=1) < 60


def test_the_listing_marks_reconstructions_and_counts_passes():
    rows = {row["rule"]: row for row in listing(CATALOGUE)}
    assert len(rows) == len(CATALOGUE)
    assert rows["ep_grpo†"]["grade"] == "inferred"
    assert "gcpo" in rows
    assert rows["gcpo"]["passes"] == "1"
    assert rows["cscr†"]["passes"] == "2"
    assert rows["vine"]["passes"] == "many"
    assert rows["uniform"] == {
        "rule": "uniform", "grade": "certain", "form": "multiplies", "budget": "rollout",
        "passes": "0", "needs": "", "source": "GRPO, arXiv:2402.03300",
    }  # fmt: skip
    assert extra_passes(CATALOGUE["cal_opd"]) == 3
    assert extra_passes(CATALOGUE["oar_p"]) is None
