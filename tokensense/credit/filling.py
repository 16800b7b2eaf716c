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
NEWTON_STEPS = 50


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
    price = _by_newton(h, b, total=total, bounds=bounds)
    if price is None:
        price = _by_sorting(h, b, total=total, bounds=bounds)
    return np.clip((b - price) / h, low, high), price


def _by_newton(
    h: Tokens, b: Tokens, *, total: float, bounds: tuple[Tokens, Tokens]
) -> float | None:
    """Solve for those between their bounds, until they are the same twice; None if never."""
    low, high = bounds
    above, below = b - h * high, b - h * low  # prices at which a token reaches its bounds
    rate, level = 1 / h, b / h
    price = float((level.sum() - total) / rate.sum())
    least, most = float(above.min()), float(below.max())
    for _ in range(NEWTON_STEPS):
        price = min(max(price, least), most)
        at_high, at_low = price <= above, price >= below
        free = ~(at_high | at_low)
        weight = rate[free].sum()
        fixed = high[at_high].sum() + low[at_low].sum()
        excess = level[free].sum() - price * weight + fixed - total
        if not weight:
            return price if excess == 0 else None
        if excess > 0:
            least = price
        else:
            most = price
        price = float(price + excess / weight)
        if ((price <= above) == at_high).all() and ((price >= below) == at_low).all():
            return price
    return None


def _by_sorting(h: Tokens, b: Tokens, *, total: float, bounds: tuple[Tokens, Tokens]) -> float:
    """Walk along the sorted prices at which some token reaches a bound."""
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
    free = (b - h * high < guess) & (guess < b - h * low)
    weight = (1 / h[free]).sum()
    if not weight:
        return float(guess)
    fixed = np.clip((b - guess) / h, low, high)[~free].sum()
    return float(((b[free] / h[free]).sum() + fixed - total) / weight)
