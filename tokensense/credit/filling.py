"""Weights that share a budget where every token has its own price: water-filling.

Reads  curvature, slope and bounds of each token, a budget; float64 arrays on the host.
Gives  water_filling; Tokens, the type of these arrays.
Sign   the higher the price, the smaller every weight.

Source   methods/gcpo_and_optimal_weights.md 2.6, special case (i).
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

Tokens: TypeAlias = Float64[np.ndarray, " token"]


def water_filling(
    h: Tokens, b: Tokens, *, total: float, bounds: tuple[Tokens, Tokens]
) -> tuple[Tokens, float]:
    """Weights clip((b - price) / h, low, high) with the price at which it sums to the total.

    Args:
        h: > 0.
        b: any.
        total: between the sums of the bounds.
        bounds: low and high, finite.

    Returns:
        Weights, and the price.
    """
    low, high = bounds
    # Falling in the price: from `high` down to `low` between two breakpoints a token.
    points = np.concatenate([b - h * high, b - h * low])
    slope = np.concatenate([-1 / h, 1 / h])
    order = np.argsort(points, kind="stable")
    points, slope = points[order], np.cumsum(slope[order])
    values = high.sum() + np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(points))])
    after = int(np.searchsorted(-values, -total))
    low_end, high_end = points[max(after - 1, 0)], points[min(after, points.size - 1)]
    guess = (low_end + high_end) / 2
    # Who is free between two breakpoints is known exactly, and so is the price then.
    w = np.clip((b - guess) / h, low, high)
    free = (b - h * high < guess) & (guess < b - h * low)
    weight = (1 / h[free]).sum()
    if not weight:
        return w, float(guess)
    price = ((b[free] / h[free]).sum() + w[~free].sum() - total) / weight
    return np.where(free, np.clip((b - price) / h, low, high), w), float(price)
