"""The two centers by hand, and worlds in which their answer is planted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.credit.delta import dense, fit, full_head
from tokensense.errors import StatisticsError
from tokensense.stats.centers import (
    CENTER_NUMBERS,
    center_numbers,
    contrast_change,
    held_out,
    pooled_alpha,
    removal,
)


def test_numbers_by_hand():
    vectors = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [5.0, 5.0]])
    advantage = np.array([1.0, 1.0, -0.5, 0.0])
    found = center_numbers(dense(vectors), advantage)
    assert list(found) == list(CENTER_NUMBERS)
    # mu+ = (2, 0), mu- = (0, 2), M+ = 2, M- = .5
    assert found["mass_positive"] == 2.0
    assert found["mass_negative"] == 0.5
    assert found["tilt"] == 4.0
    assert found["cosine"] == pytest.approx(0.0, abs=1e-12)
    assert found["contrast"] == pytest.approx(math.sqrt(8) / 4)
    assert found["cancellation"] == pytest.approx(math.sqrt(16 + 1) / 5)
    left = center_numbers(dense(vectors), advantage, np.array([0.0, 1.0, 2.0, 1.0]))
    assert left["tilt"] == 1.0
    assert left["contrast"] == pytest.approx(math.sqrt(9 + 4) / 5)
    with pytest.raises(StatisticsError, match=r"the masses are \[2.0, 0.0\]"):
        center_numbers(dense(vectors), np.maximum(advantage, 0))


@given(seed=st.integers(0, 500))
@settings(max_examples=10)
def test_numbers_by_vectors_and_in_any_geometry(seed):
    rng = np.random.default_rng(seed)
    residual, hidden = rng.normal(size=(12, 4)), rng.normal(0.5, 1, size=(12, 3))
    vectors = (residual[:, :, None] * hidden[:, None]).reshape(12, 12)
    advantage = rng.normal(size=12)
    advantage[:2] = 1, -1
    found = center_numbers(full_head(residual, hidden), advantage)
    mean = [
        np.average(vectors[s * advantage > 0], axis=0, weights=abs(advantage[s * advantage > 0]))
        for s in (1, -1)
    ]
    size = [np.linalg.norm(m) for m in mean]
    assert found["cosine"] == pytest.approx(mean[0] @ mean[1] / size[0] / size[1])
    assert found["contrast"] == pytest.approx(np.linalg.norm(mean[0] - mean[1]) / sum(size))
    update = np.linalg.norm((advantage[:, None] * vectors).sum(0))
    most = found["mass_positive"] * size[0] + found["mass_negative"] * size[1]
    assert found["cancellation"] == pytest.approx(update / most)


def world(*, problems=24, group=4, tokens=12, style=3.0, signal=1.0, seed=0):
    """Responses whose first half of tokens is one shared direction, the second half tells sides."""
    rng = np.random.default_rng(seed)
    rollouts = problems * group
    side = np.tile([1.0, -1.0], rollouts // 2)
    advantage = np.repeat(side, tokens)
    is_format = np.tile(np.arange(tokens) < tokens // 2, rollouts)
    vectors = rng.normal(size=(rollouts * tokens, 6))
    vectors[:, 0] += style * is_format
    vectors[:, 1] += signal * advantage * ~is_format
    length = np.full(rollouts, tokens)
    problem = np.repeat(np.arange(problems), group)
    return vectors, advantage, is_format, length, problem


def test_format_that_both_sides_share_is_found():
    vectors, advantage, is_format, length, problem = world()
    sizes = {"length": length, "problem": problem, "resamples": 300}
    found = removal(vectors, advantage, is_format, **sizes)
    whole = center_numbers(dense(vectors), advantage)["cosine"]
    without = center_numbers(dense(vectors), advantage, (~is_format).astype(float))["cosine"]
    assert found.whole.estimate == pytest.approx(whole)
    assert found.fall.estimate == pytest.approx(whole - without)
    assert found.excess.low > 0.5
    assert abs(found.random_fall.estimate) < 0.1
    # Removing tokens at random is no worse than removing tokens at random.
    rng = np.random.default_rng(5)
    some = np.concatenate([rng.permutation(12) < 6 for _ in length])
    null = removal(vectors, advantage, some, **sizes)
    assert null.excess.low < 0 < null.excess.high


def test_a_random_removal_takes_as_many_tokens_of_each_rollout():
    vectors, advantage, _, length, problem = world(problems=20, group=2, tokens=4)
    # All tokens of one side but one a rollout are equal to the mean: nothing can fall.
    vectors[:] = np.where(advantage > 0, 1.0, 2.0)[:, None]
    removed = np.tile([True, True, True, False], length.size)
    found = removal(vectors, advantage, removed, length=length, problem=problem, resamples=100)
    assert found.whole.estimate == pytest.approx(1.0)
    assert found.random_fall.estimate == pytest.approx(0.0, abs=1e-12)


def test_the_discriminator_on_other_problems():
    vectors, advantage, _, length, problem = world(signal=1.5)
    found = held_out(dense(vectors), advantage, np.repeat(problem, length), refinements=(0, 1))
    assert found.auroc.shape == (2, 24)
    # Half of the tokens differ by 3 deviations, half by none.
    assert found.auroc.mean() == pytest.approx(0.75, abs=0.06)
    by = np.repeat(problem, length)
    lam = 0.8 + 0.4 * found.alpha[1]
    change = contrast_change(vectors, advantage, lam, problem=by, resamples=200)
    before, after = (center_numbers(dense(vectors), advantage, c)["contrast"] for c in (None, lam))
    assert change.estimate == pytest.approx(after / before - 1)
    assert 0 < change.low < change.estimate < change.high
    same = contrast_change(vectors, advantage, np.full(lam.size, 0.8), problem=by, resamples=100)
    assert same.estimate == pytest.approx(0.0, abs=1e-12)
    blind = world(signal=0.0)
    chance = held_out(dense(blind[0]), blind[1], np.repeat(problem, length), refinements=(1,))
    assert chance.auroc.mean() == pytest.approx(0.5, abs=0.03)
    # In its own pool even noise is told apart.
    own = fit(dense(blind[0]), blind[1])
    assert dense(blind[0])(*own.weights).alignment @ blind[1] > 0


def test_folds_keep_problems_together_and_need_both_sides():
    vectors, _, _, length, problem = world(problems=2, group=2)
    apart = np.repeat(problem, length)
    one_sided = np.where(apart == 0, 1.0, -1.0)
    with pytest.raises(StatisticsError, match="leaves one side empty"):
        held_out(dense(vectors), one_sided, apart, folds=2)
    many = np.tile([0, 1, 2, 3], 12)
    with pytest.raises(StatisticsError, match="a problem with right and wrong responses"):
        held_out(dense(vectors), np.where(many % 2, 1.0, -1.0), many, folds=4, seed=3)


def test_pools_have_centers_of_their_own():
    vectors, advantage, _, length, problem = world(problems=4)
    pool = np.repeat(problem // 2, length)
    found = pooled_alpha(dense(vectors), advantage, pool)
    for label in (0, 1):
        here = pool == label
        alone = fit(dense(vectors[here]), advantage[here])
        np.testing.assert_allclose(found[here], alone.alpha)
    one_sided = pooled_alpha(dense(vectors), np.where(pool == 0, 1.0, advantage), pool)
    assert np.isnan(one_sided[pool == 0]).all()
    assert np.isfinite(one_sided[pool == 1]).all()
