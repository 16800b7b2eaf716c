"""Learning value: numbers with known answers, and a world in which signal and noise are planted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.errors import StatisticsError
from tokensense.stats.learning import (
    alignment,
    cosines,
    rank_agreement,
    ranking,
    reliability,
    shares,
)
from tokensense.stats.resampling import Method


def test_cosines_by_hand():
    found = cosines(np.array([[6.0, -2.0]]), np.array([[4.0, 1.0]]), norm=3.0)
    np.testing.assert_allclose(found, [[1.0, -2 / 3]])
    with pytest.raises(StatisticsError, match="batch 1, rule 0 is"):
        cosines(np.ones((2, 1)), np.array([[1.0], [0.0]]), norm=1.0)
    with pytest.raises(StatisticsError, match=r"\(G: 0.0\)"):
        cosines(np.ones((1, 1)), np.ones((1, 1)), norm=0.0)


def test_rules_are_compared_on_the_same_batches():
    rng = np.random.default_rng(0)
    own = rng.uniform(-0.2, 0.5, 40)
    # Equal to the last bit; better by .1 nearly everywhere; another draw.
    cosine = np.stack([own, own, own + 0.1 + rng.normal(0, 1e-3, 40), rng.permutation(own)], 1)
    found = ranking(cosine, resamples=500)
    np.testing.assert_allclose(found.cosine.estimate, cosine.mean(0))
    assert found.difference.estimate[1] == 0.0
    assert found.difference.method[1] == Method.NONE_NO_VARIATION
    low, high = found.difference.low[2], found.difference.high[2]
    assert low < 0.1 < high
    assert high - low < 0.002
    assert found.difference.high[3] - found.difference.low[3] > 0.05
    ratio = (1 - cosine[:, 2].mean()) / (1 - own.mean())
    assert found.distance_ratio.estimate[2] == pytest.approx(ratio)
    # 2 - 2 cosine is the squared distance of the unit vectors.
    g, reference = np.array([1.0, 2.0, -1.0]), np.array([0.5, 1.0, 3.0])
    unit = g / np.linalg.norm(g) - reference / np.linalg.norm(reference)
    one = cosines(
        np.array([[g @ reference]]), np.array([[g @ g]]), norm=float(np.linalg.norm(reference))
    )
    assert unit @ unit == pytest.approx(2 - 2 * one.item())


def test_shares_by_hand():
    # Ten equal batches of two kinds and two rules; kind 1 of rule 1 works against kind 0.
    gain = np.tile([[[3.0, 1.0], [2.0, 0.0]]], (10, 1, 1))
    squared = np.tile([[[1.0, 3.0], [6.0, -2.0]]], (10, 1, 1))
    found = shares(gain, squared, resamples=100)
    np.testing.assert_allclose(found.gain.estimate, [[0.75, 0.25], [1.0, 0.0]])
    np.testing.assert_allclose(found.norm.estimate, [[0.25, 0.75], [1.5, -0.5]])
    np.testing.assert_allclose(found.norm_difference.estimate[1], [1.25, -1.25])
    np.testing.assert_allclose(found.gain_difference.estimate[0], 0.0)
    # A batch counts by the direction of its gradient, not by its length.
    scale = np.geomspace(1, 1e3, 10)[:, None, None]
    again = shares(gain * scale, squared * scale**2, resamples=100)
    np.testing.assert_allclose(again.gain.estimate, found.gain.estimate)
    np.testing.assert_allclose(again.norm.estimate, found.norm.estimate)


@given(seed=st.integers(0, 500))
@settings(max_examples=10)
def test_shares_add_up(seed):
    rng = np.random.default_rng(seed)
    gain, squared = rng.uniform(0.1, 1.0, (2, 12, 3, 4))
    found = shares(gain, squared, resamples=100)
    for part in (found.gain, found.norm):
        np.testing.assert_allclose(part.estimate.sum(-1), 1.0)
    np.testing.assert_allclose(found.gain_difference.estimate[0], 0.0)


def test_mean_and_noise_are_told_apart():
    rng = np.random.default_rng(1)
    dims, batches = 400, 300
    reference = rng.normal(size=dims)
    sideways = rng.normal(size=dims)
    sideways -= reference * (sideways @ reference) / (reference @ reference)
    for mean, noise, expected in (
        (reference, 3.0, 1.0),  # right on average, far noisier than long
        (sideways, 0.1, 0.0),  # hardly any noise, and wrong
    ):
        drawn = mean + noise * rng.normal(size=(batches, dims))
        total = drawn.sum(0)
        found = alignment(
            total_squared=total @ total,
            sum_squared=float((drawn**2).sum()),
            total_gain=total @ reference,
            batches=batches,
            norm=float(np.linalg.norm(reference)),
        )
        assert found.cosine == pytest.approx(expected, abs=0.05)
        assert found.mean_norm == pytest.approx(np.linalg.norm(mean), rel=0.05)
        assert found.noise == pytest.approx(dims * noise**2, rel=0.02)
        assert found.snr == pytest.approx(mean @ mean / (dims * noise**2), rel=0.1)


def test_no_mean_at_all():
    found = alignment(total_squared=1.0, sum_squared=2.0, total_gain=0.5, batches=2, norm=1.0)
    assert found.mean_norm == 0.0
    assert math.isnan(found.cosine)
    assert found.snr < 0
    with pytest.raises(StatisticsError, match="two batches or more"):
        alignment(total_squared=1.0, sum_squared=1.0, total_gain=0.5, batches=1, norm=1.0)


def test_reliability_of_two_halves():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=100_000)
    halves = truth + 2.0 * rng.normal(size=(2, truth.size))
    whole = halves.mean(0)
    found = reliability(halves[0] @ halves[1], halves[0] @ halves[0], halves[1] @ halves[1])
    # Truth 1, noise 4 a half: 1 / (1 + 4 / 2). Its root is the cosine of the whole with the truth.
    assert found == pytest.approx(1 / 3, abs=0.01)
    cosine = whole @ truth / np.linalg.norm(whole) / np.linalg.norm(truth)
    assert math.sqrt(found) == pytest.approx(cosine, abs=0.01)
    assert reliability(2.0, 2.0, 2.0) == 1.0
    assert reliability(-0.1, 1.0, 1.0) == 0.0
    with pytest.raises(StatisticsError, match=r"their squared norms are 0.0 and 1.0"):
        reliability(0.0, 0.0, 1.0)


def test_agreement_is_within_rollouts():
    length = np.array([3, 0, 4, 1])
    value = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 40.0, 5.0])
    assert rank_agreement(value**3, value, length) == pytest.approx(1.0)
    assert rank_agreement(-value, value, length) == pytest.approx(-1.0)
    # One rollout agrees, the other opposes it, lengths do not count; differences between rollouts
    # play no part.
    mixed = np.array([1.0, 2.0, 3.0, -1.0, -2.0, -3.0, -4.0, 0.0])
    assert rank_agreement(mixed, value, length) == pytest.approx(0.0)
    constant = np.array([1.0, 1.0, 1.0, *value[3:]])
    assert rank_agreement(constant, value, length) == pytest.approx(1.0)
    assert math.isnan(rank_agreement(np.ones(8), value, length))
