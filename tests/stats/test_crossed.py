import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

from tokensense.stats.crossed import (
    crossed_intervals,
    frame_weights,
    mean_squares,
    resampled,
    widened_tail,
)
from tokensense.stats.resampling import Draws, Method, Resampling


def products(d):
    """(1, 1, frame, frame) of contrasts (token, frame)."""
    return np.einsum("tf,tg->fg", d, d)[None, None]


def test_mean_squares_are_those_of_statsmodels():
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 5)) + np.array([[1.0], [0.0]])
    table = pd.DataFrame(
        [(level, frame, z[level, frame]) for level in range(2) for frame in range(5)],
        columns=["level", "frame", "z"],
    )
    expected = anova_lm(ols("z ~ C(level) + C(frame)", table).fit())["mean_sq"]
    d = (z[1] - z[0])[None] / 2
    found = mean_squares(products(d), np.ones((1, 5)))
    # The factor 2 that the docstring leaves out: two levels.
    assert 2 * found.level.item() == pytest.approx(expected["C(level)"])
    assert 2 * found.interaction.item() == pytest.approx(expected["Residual"])


def test_drawn_frames_give_the_mean_squares_of_the_sample_on_average():
    d = np.random.default_rng(1).normal(size=(7, 4)) + 0.3
    whole = mean_squares(products(d), np.ones((1, 4)))
    patterns = {
        tuple(sorted(np.bincount(draw, minlength=4)))
        for draw in itertools.product(range(4), repeat=4)
    }
    for pattern in patterns:
        orders = np.array(list(itertools.permutations(pattern)), dtype=float)
        found = mean_squares(np.repeat(products(d), len(orders), axis=0), orders)
        if max(pattern) == 4:  # one frame alone: nothing to tell level from frame
            assert np.isnan(found.level).all()
            assert np.isnan(found.interaction).all()
            continue
        np.testing.assert_allclose(found.level.mean(), whole.level.item())
        np.testing.assert_allclose(found.interaction.mean(), whole.interaction.item())


def test_equal_contrasts_in_all_frames_leave_exactly_no_interaction():
    d = np.repeat(np.array([[0.1], [0.7], [-0.3]]), 6, axis=1)
    weights = frame_weights(6, Resampling(1, 200, 0))
    found = mean_squares(np.repeat(products(d), len(weights), axis=0), weights)
    assert (found.interaction == 0).all()
    np.testing.assert_allclose(found.level, 6 * (d[:, 0] ** 2).sum())


def test_resampled_is_the_plain_loop():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(5, 3, 2, 6))  # cluster, token, series, frame
    summed = np.einsum("ctsf,ctsg->csfg", table, table)
    plan = Resampling(5, 100, 3)
    found = resampled(summed, plan=plan, frames_too=True)
    weights = frame_weights(6, plan)
    counts = np.concatenate(list(plan.counts()))
    for draw in range(0, 100, 9):
        frames = np.repeat(np.arange(6), weights[draw].astype(int))
        texts = np.repeat(np.arange(5), counts[draw].astype(int))
        picked = table[texts][..., frames]
        mean = picked.mean(axis=-1)
        copies = (weights[draw] ** 2).sum() / 6
        inner = ((picked - mean[..., None]) ** 2).sum(axis=(0, 1, 3)) / (6 - copies)
        np.testing.assert_allclose(found.interaction[draw], inner)
        np.testing.assert_allclose(
            found.level[draw], 6 * (mean**2).sum(axis=(0, 1)) - (copies - 1) * inner
        )
    alone = resampled(summed, plan=plan, frames_too=False)
    np.testing.assert_allclose(
        alone.level[0], 6 * np.einsum("c,cts->s", counts[0], table.mean(axis=-1) ** 2)
    )


def test_frames_do_not_follow_problems():
    plan = Resampling(6, 5000, 0)
    counts = np.concatenate(list(plan.counts()))
    weights = frame_weights(6, plan)
    assert (weights.sum(axis=1) == 6).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.06)
    correlation = np.corrcoef(counts[:, 0], weights[:, 0])[0, 1]
    assert abs(correlation) < 0.05


def test_tails_are_widened_for_the_fewer_units():
    values = np.random.default_rng(0).normal(size=(20_000, 2))
    draws = Draws(np.zeros(2), values, values[:0], np.array([200, 7]))
    found = crossed_intervals(draws, units=6)
    tail = norm.cdf(-np.sqrt(6 / 5) * t.ppf(0.975, 5))
    assert widened_tail(6, level=0.95) == pytest.approx(tail)
    np.testing.assert_allclose(found.low[0], np.quantile(values[:, 0], tail))
    np.testing.assert_allclose(found.high[0], np.quantile(values[:, 0], 1 - tail))
    assert found.high[0] > 2.6  # Student's 2.57 times sqrt(6/5), where plain percentiles give 1.96
    assert found.method[1] == Method.NONE_FEW_PROBLEMS
    assert np.isnan(found.low[1])
    assert found.clusters.tolist() == [200, 7]
