"""What is planted in made-up samples is there: variance shares, truth of lambda, effect, styles."""

import numpy as np
import pytest

from studies.null_data import DRIFT, SHARE, Cell, made, true_lambda
from tokensense.stats.shifts import contrast


def contrasts(data):
    """(pair, token) of d."""
    sample = data.sample
    return np.stack(
        [contrast(sample.shift(p.positive), sample.shift(p.negative)) for p in data.pairs]
    )


def test_same_seed_same_numbers():
    first, second, other = (
        made(Cell(5, 4, 0.1), families=2, frames=2, effect=0.0, seed=[seed]).sample.logp
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert first.shape[0] == 1 + 3 * 2 * 2
    assert other.shape != first.shape or (other != first).any()


@pytest.mark.parametrize("cell", [Cell(2000, 4, 0.5), Cell(2000, 4, 0.1, heavy=True)])
def test_variance_lies_where_it_was_put(cell):
    data = made(cell, families=1, frames=2, effect=0.0, seed=[3])
    d = contrasts(data)
    assert d.var(axis=1) == pytest.approx(1.0, abs=0.12)
    # two sentences of one word share SHARE, two words share nothing
    table = np.cov(d)
    assert table[0, 1] == pytest.approx(SHARE, abs=0.06)
    assert table[0, 2] == pytest.approx(0.0, abs=0.06)
    # first tokens of two rollouts of a problem share the ICC
    start = np.cumsum(data.sample.length) - data.sample.length
    first = d[0][start].reshape(cell.clusters, cell.rollouts)
    assert np.corrcoef(first[:, 0], first[:, 1])[0, 1] == pytest.approx(cell.icc, abs=0.08)


def test_lambda_is_the_log_of_expected_mean_squares():
    assert true_lambda(Cell(6, 1, 0.0), frames=6, effect=0.0) == pytest.approx(np.log(2.5))
    assert true_lambda(Cell(6, 1, 0.0), frames=4, effect=1.0) == pytest.approx(
        np.log(1 + 4 * (4 * 0.2 + 1 / 16) / 0.8)
    )
    drift = Cell(3000, 4, 0.1, drift=True)
    d = contrasts(made(drift, families=1, frames=3, effect=0.5, seed=[4]))[:3]
    level = 3 * np.mean(d.mean(axis=0) ** 2)
    inner = np.mean(d.var(axis=0, ddof=1))
    assert np.log(level / inner) == pytest.approx(
        true_lambda(drift, frames=3, effect=0.5), abs=0.05
    )


def test_drift_falls_along_the_rollout_in_all_words():
    data = made(Cell(3000, 4, 0.1, drift=True), families=1, frames=1, effect=0.0, seed=[5])
    length = data.sample.length
    end = np.cumsum(length)
    d = contrasts(data)
    assert d[:, end - length].mean(axis=1) == pytest.approx(1.5 * DRIFT, abs=0.06)
    assert d[:, end - 1].mean(axis=1) == pytest.approx(0.5 * DRIFT, abs=0.06)


def test_the_effect_is_in_the_verdict_alone_and_goes_with_the_reward():
    data = made(Cell(3000, 4, 0.1), families=1, frames=1, effect=1.0, seed=[6])
    right = np.repeat(data.sample.reward == 1, data.sample.length)
    verdict, placebo = contrasts(data)
    assert verdict[right].mean() - verdict[~right].mean() == pytest.approx(0.5, abs=0.06)
    assert placebo[right].mean() - placebo[~right].mean() == pytest.approx(0.0, abs=0.06)
    assert 0.4 < right.mean() < 0.6


def test_writers_are_right_as_often_as_they_should_be():
    data = made(Cell(4000, 4, 0.1, writers=True), families=1, frames=1, effect=0.0, seed=[7])
    share = data.sample.reward.reshape(-1, 4).mean(axis=0)
    assert share == pytest.approx([0.22, 0.40, 0.35, 0.57], abs=0.03)
    assert data.sample.generator[:4].tolist() == ["a", "b", "c", "d"]


def test_the_triple_is_one_sentence_of_two_words():
    data = made(Cell(5, 2, 0.0), families=3, frames=4, effect=0.0, seed=[8]).triple()
    assert [pair.name for pair in data.pairs] == ["verdict/f0", "placebo-00/f0"]
    assert data.terms.verdict == (0,)
    assert data.terms.placebo == {"placebo-00": (1,)}
