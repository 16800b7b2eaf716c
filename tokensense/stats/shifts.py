"""How far, and which way, two opposed conditions move each token; and columns to sum over tokens.

Reads  z+ and z-: shifts of a token under the positive and the negative condition, nats.
Gives  common, contrast, sensitivity, standardized shift; per-token columns whose sums over any set
       of tokens make the statistics of `catalogue`.
Sign   positive: the condition makes the sampled token likelier.

With m = (z+ + z-)/2 and d = (z+ - z-)/2: shifts are m +- d, and max(|z+|, |z-|) = |m| + |d|. Logit
noise of size sigma moves log p of a token by sigma * ||onehot - p||, which is why uncertain tokens
move under any condition. Three things are fixed once, on the full sample, that a resample of
problems does not redo: ranks, the limits of winsorizing, and the wording floor.

Source   the opposed conditions are those of arXiv:2607.27888; the decomposition is ours.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.stats import rankdata

from tokensense.segments import broadcast, segment_mean

# Nearer to certainty than this, shift / distance divides rounding error by rounding error.
RESOLVED_DISTANCE = 1e-3
# Both tails of a shift are cut here before Pearson's correlation.
WINSOR_TAIL = 0.01
FIXED_THRESHOLD = 0.05


def common(
    positive: Float[np.ndarray, "..."], negative: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Half the sum, m = (z+ + z-)/2, nats: the effect of being given either condition.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    return np.asarray((positive + negative) / 2)


def contrast(
    positive: Float[np.ndarray, "..."], negative: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Half the difference, d = (z+ - z-)/2, nats; positive: likelier under the positive condition.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    return np.asarray((positive - negative) / 2)


def sensitivity(
    positive: Float[np.ndarray, "..."], negative: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Larger size, s = max(|z+|, |z-|) = |m| + |d|, nats, never negative.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    return np.asarray(np.maximum(np.abs(positive), np.abs(negative)))


def absolute_shift(
    positive: Float[np.ndarray, "..."], negative: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Mean of |z+| and |z-|, nats, never negative.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    return np.asarray((np.abs(positive) + np.abs(negative)) / 2)


def onehot_distance(
    logp: Float[np.ndarray, "..."], p_square_sum: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """||onehot - p|| = sqrt(1 - 2 p + sum of p squared), no unit, in [0, sqrt 2].

    Written as (1 - p)^2 plus the squares of the others, which lie between 0 and (1 - p)^2; the
    stored sum is held to that, since near p = 1 its own rounding is larger than the distance.

    Args:
        logp: of the token, nats, at most 0 but for rounding.
        p_square_sum: sum over the vocabulary of squared probabilities.
    """
    held = np.minimum(logp, 0.0)
    own = np.expm1(held) ** 2
    others = np.clip(p_square_sum - np.exp(2 * held), 0.0, own)
    return np.asarray(np.sqrt(own + others))


def standardized_shift(
    shift: Float[np.ndarray, "..."], distance: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Shift over ||onehot - p||: the size of logit noise that would move the token as far.

    Args:
        shift: nats.
        distance: of `onehot_distance`.

    Returns:
        Nats of logit; NaN where the distance is below `RESOLVED_DISTANCE`.
    """
    unknown = np.full_like(shift, np.nan)
    resolved = distance >= RESOLVED_DISTANCE
    return np.asarray(np.divide(shift, distance, out=unknown, where=resolved))


class Evidence(NamedTuple):
    """What the columns of one pair are made of: the tokens of the rollouts it can use.

    Attributes:
        positive: z+, nats.
        negative: z-, nats.
        surprisal: -logp[base], nats.
        distance: of `onehot_distance`, under base.
        floor: wording floor of each token, nats; NaN where there is none.
        length: tokens per rollout.
    """

    positive: Float[np.ndarray, " token"]
    negative: Float[np.ndarray, " token"]
    surprisal: Float[np.ndarray, " token"]
    distance: Float[np.ndarray, " token"]
    floor: Float[np.ndarray, " token"]
    length: Int64[np.ndarray, " rollout"]


def token_columns(evidence: Evidence) -> Iterator[tuple[str, Float[np.ndarray, " token"]]]:
    """Per-token numbers whose sums make every statistic of `CATALOGUE`, a few at a time.

    All of them together take ten times the memory of the evidence.

    Args:
        evidence: of one pair.

    Yields:
        Name and column over token; names as in `CATALOGUE`'s functions.
    """
    positive, negative = evidence.positive, evidence.negative
    size = sensitivity(positive, negative)
    yield "tokens", np.ones_like(positive)
    # A comparison with NaN is false: without a wording floor nothing is above it.
    for name, moved in (
        ("any", size > 0),
        ("floor", size > evidence.floor),
        ("fixed", size > FIXED_THRESHOLD),
    ):
        yield from _direction_columns(name, positive, negative, moved=moved).items()
    yield from _size_columns(evidence)
    yield "common_squares", _centered(common(positive, negative), evidence.length) ** 2
    yield "contrast_squares", _centered(contrast(positive, negative), evidence.length) ** 2
    yield from product_columns("value", winsorized(positive), winsorized(negative)).items()
    yield from product_columns("rank", ranks(positive), ranks(negative)).items()
    yield from product_columns("surprisal", ranks(size), ranks(evidence.surprisal)).items()


def product_columns(
    name: str, x: Float[np.ndarray, " token"], y: Float[np.ndarray, " token"]
) -> dict[str, np.ndarray]:
    """Columns whose sums make a correlation of x and y, both scaled to mean 0 and variance 1.

    Args:
        name: in front of each column's name.
        x: any unit.
        y: any unit.
    """
    x, y = _standard(x), _standard(y)
    return {
        f"{name}_x": x,
        f"{name}_y": y,
        f"{name}_xx": x * x,
        f"{name}_yy": y * y,
        f"{name}_xy": x * y,
    }


def winsorized(values: Float[np.ndarray, " token"]) -> Float[np.ndarray, " token"]:
    """Pull values beyond the 1 and 99 % quantiles in to them, unit kept.

    Args:
        values: any unit.
    """
    if values.size == 0:
        return values
    low, high = np.quantile(values, (WINSOR_TAIL, 1 - WINSOR_TAIL))
    return np.asarray(np.clip(values, low, high))


def ranks(values: Float[np.ndarray, " token"]) -> Float[np.ndarray, " token"]:
    """Ranks from 1, ties averaged.

    Args:
        values: any unit.
    """
    return np.asarray(rankdata(values), dtype=np.float64)


def _direction_columns(
    name: str,
    positive: Float[np.ndarray, " token"],
    negative: Float[np.ndarray, " token"],
    *,
    moved: Bool[np.ndarray, " token"],
) -> dict[str, np.ndarray]:
    """Affected tokens, and those among them moved the same way or opposite ways.

    Signs, not the product: the product of two small shifts underflows to 0. A moved token has at
    least one sign, so that equal signs are not both 0.
    """
    one, other = np.sign(positive), np.sign(negative)
    return {
        f"affected_{name}": moved.astype(np.float64),
        f"same_{name}": (moved & (one == other)).astype(np.float64),
        f"reversed_{name}": (moved & (one == -other)).astype(np.float64),
    }


def _size_columns(evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """Sizes in nats, and the tokens that have a wording floor or a standardized shift."""
    positive, negative = evidence.positive, evidence.negative
    absolute = absolute_shift(positive, negative)
    yield "absolute", absolute
    standard = standardized_shift(absolute, evidence.distance)
    known = ~np.isnan(standard)
    yield "standard", np.where(known, standard, 0.0)
    yield "standard_tokens", known.astype(np.float64)
    yield "shift", common(positive, negative)
    yield "contrast", contrast(positive, negative)
    yield "absolute_common", np.abs(common(positive, negative))
    yield "absolute_contrast", np.abs(contrast(positive, negative))
    yield "sensitivity", sensitivity(positive, negative)
    yield "floor_tokens", (~np.isnan(evidence.floor)).astype(np.float64)


def _centered(
    values: Float[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> Float[np.ndarray, " token"]:
    """Subtract from each token the mean of its trajectory."""
    return np.asarray(values - broadcast(segment_mean(values, length), length))


def _standard(values: Float[np.ndarray, " token"]) -> Float[np.ndarray, " token"]:
    """Center and scale to variance 1 on the full sample; zeros where nothing varies."""
    if values.size == 0 or np.ptp(values) == 0:
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / values.std())
