"""Coefficients of DelTA by hand and by plain formulas."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.stats.test_centers import world
from tokensense.credit.delta import dense, fit
from tokensense.errors import StatisticsError
from tokensense.stats.coefficients import (
    LAMBDA_NUMBERS,
    lambda_numbers,
    proxy_agreement,
    token_types,
)


def test_numbers_of_lambda():
    vectors, advantage, _, _, _ = world()
    vectors[::2] = 0.0  # confident
    geometry = dense(vectors)
    found = fit(geometry, advantage)
    numbers = lambda_numbers(found, geometry, advantage)
    assert list(numbers) == list(LAMBDA_NUMBERS)
    lam = 0.8 + 0.4 * found.alpha
    assert numbers["deviation"] == pytest.approx(lam.std())
    assert numbers["mean_positive"] == pytest.approx(lam[advantage > 0].mean())
    assert 0.5 <= numbers["confident"] < 0.8
    pairs = np.abs(lam[:, None] - lam[None]).mean() / (2 * lam.mean())
    assert numbers["gini"] == pytest.approx(pairs)
    assert numbers["effective"] == pytest.approx(lam.mean() ** 2 / (lam**2).mean())
    means = [w @ vectors for w in found.weights]
    apart = ((means[0] - means[1]) ** 2).sum()
    expected = (apart / found.gamma[0] + apart / found.gamma[1]) / 2
    assert numbers["mean_logit"] == pytest.approx(expected)


def test_agreement_of_proxies():
    vectors, advantage, is_format, _, _ = world()
    other = vectors + np.random.default_rng(1).normal(0, 0.5, vectors.shape)
    one, two = fit(dense(vectors), advantage), fit(dense(other), advantage)
    found = proxy_agreement(one, two, ~is_format)
    assert found.tokens == (~is_format).sum()
    expected = spearmanr(one.alpha[~is_format], two.alpha[~is_format]).statistic
    assert found.spearman == pytest.approx(expected)
    assert 0.6 < found.overlap < 1
    assert proxy_agreement(one, one, ~is_format)[:3] == pytest.approx((1.0, 1.0, 1.0))
    with pytest.raises(StatisticsError, match="there are 2"):
        proxy_agreement(one, two, np.arange(advantage.size) < 2)


def test_token_types():
    token_id = np.array([7, 7, 7, 7, 9, 9, 9, 9, 3, 5])
    value = np.array([1.0, 2.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 9.0, 0.0])
    advantage = np.array([1, 1, -1, -1, 1, 1, 1, 1, 1, 0.0])
    found = token_types(token_id, value, advantage, least=4)
    assert found["token_id"].tolist() == [9, 7]
    assert found["mean"].tolist() == [3.0, 1.5]
    np.testing.assert_allclose(found["error"], [0.0, math.sqrt(1 / 3 / 4)])
    # 7 is 2 of 7 tokens on one side and all of the other.
    np.testing.assert_allclose(found["shared"], [0.0, 2 * (2 / 7) / (2 / 7 + 1)])
