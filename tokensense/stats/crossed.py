"""Two-way resampling: problem texts and frames are both drawn, each with replacement.

Reads  products of contrasts in two frames, summed over the tokens of each problem text.
Gives  weights of the frames in each resample; mean squares of level and of level x frame.
Sign   none: mean squares are not negative in expectation.

Sentences are a sample as problems are (`statistics.md` 3.4), and crossed with them: every problem
meets every frame. A resample draws problems and frames independently of each other, so that a cell
counts as often as both were drawn (the pigeonhole bootstrap: Owen 2007, Ann. Appl. Stat. 1, 386; it
leans to the wide side).

Mean squares over resampled frames are not those of the sample: a mean over frames drawn twice is
noisier, and a frame differs from its copy by nothing. With counts w (sum F) and c = sum w^2 / F,
contrasts d_f of mean mu and variance v have

    E sum w (d - mean)^2 = (F - c) v        E F mean^2 = F mu^2 + c v

so v is estimated by the first over F - c, and MS(level) = F mean^2 - (c - 1) v: what it was meant
to estimate, F mu^2 + v. Where every frame is drawn once, c = 1 and both are the usual ones.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import norm
from scipy.stats import t as student

from tokensense.stats.resampling import (
    BATCH_ELEMENTS,
    BOOTSTRAP_FROM,
    T_FROM,
    Draws,
    Estimates,
    Method,
    Resampling,
    intervals,
)

# Frames are drawn with a seed of their own: with the problems' they would follow them.
FRAME_STREAM = 1


class MeanSquares(NamedTuple):
    """Of each resample and series, squared unit of the contrast.

    Attributes:
        level: of the level, mean over frames.
        interaction: of level x frame.
    """

    level: Float[np.ndarray, " draw series"]
    interaction: Float[np.ndarray, " draw series"]


def frame_weights(frames: int, plan: Resampling) -> Float[np.ndarray, " draw frame"]:
    """How often each frame is in each resample; rows sum to `frames`.

    Args:
        frames: number of sentences.
        plan: seed and number of resamples.
    """
    generator = np.random.default_rng([plan.seed, FRAME_STREAM])
    drawn = generator.multinomial(frames, np.full(frames, 1.0 / frames), size=plan.resamples)
    return drawn.astype(np.float64)


def mean_squares(
    products: Float[np.ndarray, " draw series frame frame"],
    weights: Float[np.ndarray, " draw frame"],
) -> MeanSquares:
    """Mean squares from products of contrasts, for any weights of the frames.

    Args:
        products: sum over tokens (of whatever weight) of d in one frame times d in another.
        weights: of the frames, rows that sum to their number.

    Returns:
        Up to the common factor 2 of a two-sided contrast, which no ratio sees. Both are NaN where
        one frame alone was drawn.
    """
    frames = weights.shape[1]
    square = np.einsum("dsfg,df,dg->ds", products, weights, weights, optimize=True) / frames
    own = np.einsum("dsff,df->ds", products, weights)
    copies = (weights**2).sum(axis=1, keepdims=True) / frames
    freedom = np.where(copies < frames, frames - copies, np.nan)
    # A difference of two sums: what rounding leaves of equal contrasts is nothing.
    spread = own - square
    spread = np.where(spread > 1e-12 * own, spread, 0.0)
    interaction = spread / freedom
    return MeanSquares(square - (copies - 1.0) * interaction, interaction)


def resampled(
    products: Float[np.ndarray, " cluster series frame frame"],
    *,
    plan: Resampling,
    frames_too: bool,
) -> MeanSquares:
    """Mean squares of every resample of problem texts, and of frames.

    Args:
        products: of each problem text, see `mean_squares`.
        plan: the draws of problems.
        frames_too: draw frames as well; else all are taken once.
    """
    clusters, series, frames = products.shape[:3]
    flat = products.reshape(clusters, -1)
    weights = np.ones((plan.resamples, frames))
    if frames_too:
        weights = frame_weights(frames, plan)
    width = max(clusters, flat.shape[1])
    found, start = [], 0
    for count in plan.counts(elements=BATCH_ELEMENTS * clusters // width):
        totals = (count @ flat).reshape(len(count), series, frames, frames)
        found.append(mean_squares(totals, weights[start : start + len(count)]))
        start += len(count)
    return MeanSquares(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def crossed_intervals(draws: Draws, *, units: int, level: float = 0.95) -> Estimates:
    """Percentile intervals of two-way draws, widened for the smaller of the two numbers of units.

    Args:
        draws: of problem texts and frames; `pseudo` is not looked at.
        units: problem texts or frames, whichever are fewer.
        level: coverage wanted.

    Returns:
        None below 8 problem texts, as of `intervals`.
    """
    few = draws.clusters < T_FROM
    enough = np.where(few, draws.clusters, np.maximum(draws.clusters, BOOTSTRAP_FROM))
    found = intervals(replace(draws, pseudo=draws.values[:0], clusters=enough), level=level)
    tail = widened_tail(units, level=level)
    low, high = found.low.copy(), found.high.copy()
    for output in np.argwhere(found.method == Method.BOOTSTRAP):
        at = tuple(output)
        column = draws.values[(slice(None), *at)]
        low[at], high[at] = np.quantile(column[np.isfinite(column)], (tail, 1 - tail))
    return replace(found, low=low, high=high, clusters=draws.clusters)


def widened_tail(units: int, *, level: float) -> float:
    """Share of resamples to leave out on each side, see `resampling`.

    Args:
        units: at least 2.
        level: coverage wanted.
    """
    quantile = student.ppf((1 + level) / 2, units - 1)
    return float(norm.cdf(-np.sqrt(units / (units - 1)) * quantile))
