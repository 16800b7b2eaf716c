"""Learning value: how well the batch gradient of a credit rule points where reward is gained.

Reads  of many small batches and several rules: gain <g, G> and squared norm ||g||^2 of the rule's
       batch gradient g, in all or by kind of token; the held-out reward gradient G is of other
       problems. A token's learning value is l_t = <grad log p(y_t), G>, its part in the gain
       credit_t l_t.
Gives  ranking (cosines, paired with a baseline), shares (E4: of gain and of squared norm by kind),
       alignment (of the mean gradient, apart from noise), reliability of G, rank_agreement.
Sign   positive: a small step along g raises the held-out reward.

At equal norm of the update the first-order gain is proportional to the cosine of g and G, and
E ||g/|g| - G/|G|||^2 = 2 - 2 cosine: one number ranks rules. All rules see the same batches, so
that differences are paired; batches hold different problems and are the unit of resampling. A rule
whose mean direction is wrong can still have little noise, and the reverse: `alignment` tells the
two apart, from products of different batches, in which noise has mean 0.

G is an estimate: a cosine with it is too small by sqrt(reliability), for all rules alike. With r
the cosine of two halves of it, the reliability of the whole is 2 r / (1 + r) (Spearman-Brown).

Source: methods/statistics.md, "Three measurements" A; notes/assay.md section 2.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

from tokensense.errors import StatisticsError
from tokensense.segments import broadcast, segment_mean, segment_ranks
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import Estimates, Resampling, intervals, resample


class Ranking(NamedTuple):
    """Rules at equal update norm; each with intervals over batches.

    cosine: mean over batches. difference: that minus the baseline's. distance_ratio:
    E ||g/|g| - G/|G|||^2 over the baseline's.
    """

    cosine: Estimates
    difference: Estimates
    distance_ratio: Estimates


class Shares(NamedTuple):
    """By rule and kind; over kinds each sums to 1. With intervals over batches.

    gain: of the summed cosine. norm: of the squared norm, mean over batches. gain_difference,
    norm_difference: minus the baseline rule's (E4).
    """

    gain: Estimates
    norm: Estimates
    gain_difference: Estimates
    norm_difference: Estimates


class Alignment(NamedTuple):
    """One rule's gradient as a mean and noise around it.

    mean_norm: ||E g||, 0 where the estimate of its square is not positive. cosine: of E g with G;
    NaN there. noise: trace of the covariance of g. snr: ||E g||^2 / noise, may be negative.
    """

    mean_norm: float
    cosine: float
    noise: float
    snr: float


def cosines(
    gain: Float[np.ndarray, "batch rule"], squared: Float[np.ndarray, "batch rule"], *, norm: float
) -> Float64[np.ndarray, "batch rule"]:
    """Cosine of each batch gradient with G, no unit.

    Args:
        gain: <g, G>.
        squared: ||g||^2.
        norm: ||G||.

    Raises:
        StatisticsError: a gradient is zero; the message says where.
    """
    zero = np.argwhere(~(squared > 0))
    if zero.size or not norm > 0:
        batch, rule = zero[0].tolist() if zero.size else (-1, -1)
        raise StatisticsError(
            f"a cosine needs gradients that are not zero; that of batch {batch}, rule {rule} is "
            f"(G: {norm}). Leave out batches in which no group has right and wrong responses, for "
            "all rules, and count them."
        )
    return np.asarray(gain / (np.sqrt(squared) * norm), dtype=np.float64)


def ranking(
    cosine: Float64[np.ndarray, "batch rule"],
    *,
    baseline: int = 0,
    resamples: int = 10_000,
    seed: int = 0,
) -> Ranking:
    """Mean cosine of each rule, and paired comparisons with one of them.

    Args:
        cosine: of `cosines`.
        baseline: column to compare with.
        resamples: of whole batches.
        seed: of the resamples.
    """
    batches, rules = cosine.shape
    sums = np.concatenate([cosine, np.ones((batches, 1))], axis=1)

    def statistic(totals: np.ndarray) -> np.ndarray:
        mean = totals[:, :-1] / totals[:, -1:]
        own = mean[:, baseline, None]
        return np.stack([mean, mean - own, ratio(1 - mean, 1 - own)], axis=1)

    found = intervals(
        resample(
            sums,
            statistic,
            plan=Resampling(batches, resamples, seed),
            present=np.ones((batches, 3, rules), dtype=bool),
        )
    )
    return Ranking(*(found.part(place) for place in range(3)))


def shares(
    gain: Float[np.ndarray, "batch rule kind"],
    squared: Float[np.ndarray, "batch rule kind"],
    *,
    baseline: int = 0,
    resamples: int = 10_000,
    seed: int = 0,
) -> Shares:
    """Shares of gain and of squared norm by kind of token.

    A kind's part in the squared norm is <g of the kind, g>: it may be negative, where the kind
    works against the others.

    Args:
        gain: sum over the kind's tokens of credit_t l_t.
        squared: sum over the kind's tokens of credit_t <grad log p_t, g>.
        baseline: rule to compare with.
        resamples: of whole batches.
        seed: of the resamples.

    Raises:
        StatisticsError: a gradient is zero.
    """
    whole = squared.sum(axis=-1)
    parts = cosines(gain.reshape(len(gain), -1), np.repeat(whole, gain.shape[-1], axis=1), norm=1.0)
    sums = np.stack([parts.reshape(gain.shape), squared / whole[..., None]], axis=1)

    def statistic(totals: np.ndarray) -> np.ndarray:
        share = ratio(totals, totals.sum(axis=-1, keepdims=True))
        return np.concatenate([share, share - share[:, :, baseline, None]], axis=1)

    found = intervals(
        resample(
            sums,
            statistic,
            plan=Resampling(len(gain), resamples, seed),
            present=np.ones((len(gain), 4, *gain.shape[1:]), dtype=bool),
        )
    )
    return Shares(*(found.part(place) for place in range(4)))


def alignment(
    *, total_squared: float, sum_squared: float, total_gain: float, batches: int, norm: float
) -> Alignment:
    """Mean and noise of a rule's gradient from sums over batches.

    Args:
        total_squared: ||sum_b g_b||^2.
        sum_squared: sum_b ||g_b||^2.
        total_gain: <sum_b g_b, G>.
        batches: how many, at least 2.
        norm: ||G||.

    Raises:
        StatisticsError: fewer than two batches.
    """
    if batches < 2:
        raise StatisticsError(
            f"mean and noise need two batches or more to be told apart; there are {batches}. Run "
            "more batches."
        )
    # Products of different batches only: their noise is independent.
    squared = (total_squared - sum_squared) / (batches * (batches - 1))
    noise = (sum_squared - total_squared / batches) / (batches - 1)
    mean_norm = math.sqrt(max(squared, 0.0))
    cosine = total_gain / batches / (mean_norm * norm) if mean_norm * norm > 0 else math.nan
    return Alignment(mean_norm, cosine, noise, squared / noise if noise > 0 else math.nan)


def reliability(product: float, first: float, second: float) -> float:
    """Reliability of the whole of G from its halves: 2 r / (1 + r), r their cosine; in [0, 1].

    Args:
        product: <G1, G2>.
        first: ||G1||^2.
        second: ||G2||^2.

    Raises:
        StatisticsError: a half is zero.

    Example:
        >>> round(reliability(0.6, 1.0, 1.0), 3)
        0.75
        >>> reliability(-0.6, 1.0, 1.0)
        0.0
    """
    if not (first > 0 and second > 0):
        raise StatisticsError(
            "a reliability needs two halves of G that are not zero; their squared norms are "
            f"{first} and {second}. Take more held-out rollouts."
        )
    cosine = max(product, 0.0) / math.sqrt(first * second)  # opposed halves share nothing
    return 2.0 * cosine / (1.0 + cosine)


def rank_agreement(
    weights: Float64[np.ndarray, " token"],
    value: Float64[np.ndarray, " token"],
    length: Int64[np.ndarray, " rollout"],
) -> float:
    """Mean over rollouts of the rank correlation of weights with A_t l_t, no unit.

    Args:
        weights: of a rule.
        value: A_t l_t of the same tokens, any positive unit: only ranks within rollouts count.
        length: tokens per rollout.

    Returns:
        NaN where no rollout has weights and values that vary.
    """
    weigh, worth = (
        ranks - broadcast(segment_mean(ranks, length), length)
        for ranks in (segment_ranks(weights, length), segment_ranks(value, length))
    )
    together, one, other = (
        segment_mean(a * b, length) for a, b in ((weigh, worth), (weigh, weigh), (worth, worth))
    )
    varies = (one > 0) & (other > 0)
    if not varies.any():
        return math.nan
    return float(np.mean(together[varies] / np.sqrt(one[varies] * other[varies])))
