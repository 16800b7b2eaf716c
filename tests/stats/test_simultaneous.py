import numpy as np
import pytest

from tokensense.stats.resampling import Draws
from tokensense.stats.simultaneous import max_t


def draws(values, clusters=50):
    size = values.shape[1]
    return Draws(np.zeros(size), values, values[:0], np.full(size, clusters))


def test_one_output_is_its_own_quantile_and_equal_ones_cost_nothing():
    values = np.random.default_rng(0).normal(size=(5000, 1))
    one = max_t(draws(values))
    reach = np.quantile(np.abs(values), 0.95)
    np.testing.assert_allclose(one, [[-reach, reach]])
    np.testing.assert_allclose(max_t(draws(np.repeat(values, 4, axis=1))), np.repeat(one, 4, 0))


def test_independent_outputs_are_held_together():
    values = np.random.default_rng(1).normal(size=(40_000, 5)) * np.array([1, 2, 3, 4, 50])
    limits = max_t(draws(values))
    inside = (values > limits[:, 0]) & (values < limits[:, 1])
    assert inside.all(axis=1).mean() == pytest.approx(0.95, abs=0.003)
    # Sidak: each at .95 ** (1/5), the same for all
    np.testing.assert_allclose(inside.mean(axis=0), 0.95**0.2, atol=0.004)


def test_outputs_without_variation_or_value_or_problems_get_none():
    values = np.random.default_rng(2).normal(size=(500, 3))
    values[:, 1] = 0.0
    values[0, 2] = np.nan
    limits = max_t(draws(values))
    assert np.isfinite(limits[0]).all()
    assert np.isnan(limits[1:]).all()
    assert np.isnan(max_t(draws(values, clusters=19))).all()
