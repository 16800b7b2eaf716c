"""What the weights of a rule do to a batch, in a few numbers.

Reads  weights (token) of a rule that multiplies, surprisal (token) of the same tokens.
Gives  WEIGHT_NUMBERS, what is said of every rule; weight_numbers, the values.
Sign   a positive correlation with surprisal: unlikely tokens get more credit.

Source: what methods/cscr.md section 5.8 asks to log.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64

from tokensense.segments import broadcast, segment_ranks

WEIGHT_NUMBERS: dict[str, str] = {
    "tokens": "tokens that were weighed",
    "mean": "mean weight",
    "least": "smallest weight",
    "largest": "largest weight",
    "effective": "effective tokens, (sum w)^2 / sum w^2, as a share of the tokens; uniform: 1",
    "below_uniform": "share of tokens with less credit than under uniform (weight below 1)",
    "moved": "share of the credit that lies on other tokens than under uniform, mean |w - 1| / 2",
    "with_surprisal": "correlation of the ranks within rollouts of weight and surprisal, as shares "
    "of the rollout's length; NaN where the weights do not vary",
}
# Rounding of a weight that is 1 by its formula.
ROUNDING = 1e-12


def weight_numbers(
    weights: Float64[np.ndarray, " token"] | None,
    surprisal: Float64[np.ndarray, " token"],
    length: Int64[np.ndarray, " rollout"],
) -> dict[str, int | float]:
    """Values of `WEIGHT_NUMBERS`, all but the count without unit.

    Args:
        weights: of the tokens that were weighed; None for a rule that has none.
        surprisal: of the same tokens, nats.
        length: tokens per rollout.

    Returns:
        Name -> value; NaN where there are no weights.

    Example:
        >>> numbers = weight_numbers(np.array([0.5, 1.5]), np.array([2.0, 1.0]), np.array([2]))
        >>> numbers["effective"], numbers["moved"], round(numbers["with_surprisal"], 6)
        (0.8, 0.25, -1.0)
    """
    if weights is None or not weights.size:
        return {name: 0 if name == "tokens" else math.nan for name in WEIGHT_NUMBERS}
    squares = float(np.sum(weights**2))
    effective = float(np.sum(weights)) ** 2 / (weights.size * squares) if squares else math.nan
    return {
        "tokens": int(weights.size),
        "mean": float(weights.mean()),
        "least": float(weights.min()),
        "largest": float(weights.max()),
        "effective": effective,
        "below_uniform": float(np.mean(weights < 1 - ROUNDING)),
        "moved": float(np.mean(np.abs(weights - 1)) / 2),
        "with_surprisal": _rank_correlation(weights, surprisal, length),
    }


def _rank_correlation(
    x: Float64[np.ndarray, " token"],
    y: Float64[np.ndarray, " token"],
    length: Int64[np.ndarray, " rollout"],
) -> float:
    """Correlate ranks within rollouts, so that differences between rollouts play no part."""
    if np.ptp(x) <= ROUNDING:
        return math.nan
    # Without the shift by 1/2, a single token of a rollout would rank at the top.
    shares = [(segment_ranks(v, length) - 0.5) / broadcast(length, length) for v in (x, y)]
    if min(np.ptp(share) for share in shares) == 0:
        return math.nan
    return float(np.corrcoef(*shares)[0, 1])
