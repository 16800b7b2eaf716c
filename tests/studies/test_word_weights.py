"""Ratios of word classes: by hand, and of a weight that only follows surprisal."""

import numpy as np
import pytest

from studies import word_weights as study
from studies.word_weights import Words


def words(weight, surprisal, hedge, cluster=None):
    size = len(weight)
    named = np.array([str(n) for n in (range(size) if cluster is None else cluster)])
    columns = (np.asarray(surprisal, float), np.asarray(hedge, bool), named)
    return Words(["rule"], np.asarray(weight, float)[None], *columns)


def test_the_ratio_by_hand():
    # Below 1.5 nats: hedges 2, because 6 and 4. Above: hedge 1, because 1; one left out.
    told = words([2, 6, 4, 1, 1, np.nan], [1, 1, 1, 2, 2, 2], [1, 0, 0, 1, 0, 1])
    found = study.ratios(told, told.weight[0], study.Config(strata=2, resamples=100))
    assert found.estimate[0] == pytest.approx((5 / 2 + 1 / 2) / (2 / 2 + 1 / 2))
    assert found.estimate[1] == pytest.approx((6 + 4 + 1) / 3 / 1.5)


def test_a_weight_of_surprisal_alone_shows_in_the_raw_ratio_and_much_less_in_the_matched():
    rng = np.random.default_rng(0)
    hedge = rng.random(4000) < 0.3
    surprisal = rng.integers(0, 4, 4000) + 2 * hedge  # hedges are rarer
    told = words(1.0 + surprisal, surprisal, hedge, cluster=rng.integers(0, 60, 4000))
    found = study.ratios(told, told.weight[0], study.Config(resamples=200))
    raw, matched = (abs(found.estimate[place] - 1) for place in (1, 0))
    assert raw > 0.3
    assert matched < raw / 2


def test_stores_are_joined_by_the_rules_that_all_have():
    one = words([1, 2], [0, 0], [0, 1])._replace(rules=["a"])
    two = Words(["b", "a"], np.array([[9.0], [3.0]]), np.array([1.0]), np.array([True]),
                np.array(["x"]))  # fmt: skip
    both = study.joined([one, two])
    assert both.rules == ["a"]
    assert both.weight.tolist() == [[1.0, 2.0, 3.0]]
    assert both.hedge.tolist() == [False, True, True]
