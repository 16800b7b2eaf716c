"""Counts of tokens in cells of the plane of both shifts, made before anything is drawn.

Reads  points of `stats.points.shift_points` (pair, token), nats.
Gives  shift_limit (nats), shift_density (term, positive_cell, negative_cell).
Sign   positive: the condition makes the sampled token likelier.

Shifts are mostly small and sometimes large, so cells are equally wide on the scale
asinh(z / LINEAR_WIDTH): nearly linear below LINEAR_WIDTH nats, nearly logarithmic above, the same
on both sides of 0. The panels' axes use the same scale; it keeps signs, order and the identity
line, and leaves no token outside.
"""

import math

import numpy as np
import xarray as xr
from jaxtyping import Float

from tokensense.schema import VERDICT

LINEAR_WIDTH = 0.05
CELLS = 61
PLACEBO = "placebo"
TERMS = (VERDICT, PLACEBO)


def shift_limit(points: xr.Dataset) -> float:
    """Half the width of axes that hold every point: 1, 2 or 5 times a power of ten, nats.

    Args:
        points: `positive` and `negative` (pair, token), nats; NaN is passed over.
    """
    largest = 0.0
    for name in ("positive", "negative"):
        sizes = np.abs(points[name].values)
        largest = max(largest, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
    if largest <= LINEAR_WIDTH:
        return LINEAR_WIDTH
    power = 10.0 ** math.floor(math.log10(largest))
    return next((step * power for step in (1.0, 2.0, 5.0) if largest <= step * power), 10 * power)


def shift_density(points: xr.Dataset, *, cells: int = CELLS) -> xr.Dataset:
    """Count the tokens in each cell of the plane of both shifts, for verdict and placebo.

    Args:
        points: `positive` and `negative` (pair, token), nats, with the coordinate `term` (pair).
        cells: on a side; odd, so that the middle cell holds the unmoved tokens.

    Returns:
        Dims (term, positive_cell, negative_cell): `tokens`, mean over the pairs of the term, NaN
        in empty cells; coordinates `positive_low`, `positive_high`, `negative_low`,
        `negative_high`, nats: borders of the cells, the upper one outside, but for the last.
        `pairs` (term): how many pairs the mean is over.
    """
    limit = shift_limit(points)
    reach = math.asinh(limit / LINEAR_WIDTH)
    edges = LINEAR_WIDTH * np.sinh(np.linspace(-reach, reach, cells + 1))
    # The outermost token may lie on the border itself, and sinh of asinh rounds to either side.
    edges[[0, -1]] = -limit, limit
    counts = np.full((len(TERMS), cells, cells), np.nan)
    pairs = np.zeros(len(TERMS), dtype=np.int64)
    for row, term in enumerate(TERMS):
        chosen = points.isel(pair=np.flatnonzero(points["term"].values == term))
        pairs[row] = chosen.sizes["pair"]
        total = _cell_counts(chosen, edges)
        counts[row] = np.where(total > 0, total / max(1, int(pairs[row])), np.nan)
    return xr.Dataset(
        {
            "tokens": (
                ("term", "positive_cell", "negative_cell"),
                counts,
                {"units": "tokens", "description": "tokens in the cell, mean over the pairs"},
            ),
            "pairs": (("term",), pairs, {"units": "1", "description": "pairs of the term"}),
        },
        coords={
            "term": list(TERMS),
            **{
                f"{axis}_{side}": (f"{axis}_cell", border, {"units": "nats"})
                for axis in ("positive", "negative")
                for side, border in (("low", edges[:-1]), ("high", edges[1:]))
            },
        },
        attrs=points.attrs,
    )


def _cell_counts(
    points: xr.Dataset, edges: Float[np.ndarray, " edge"]
) -> Float[np.ndarray, "cell cell"]:
    """Points in each cell, summed over the pairs; a point without both shifts counts nowhere."""
    total = np.zeros((edges.size - 1, edges.size - 1))
    for row in range(points.sizes["pair"]):
        positive, negative = (
            points[name].values[row].astype(np.float64) for name in ("positive", "negative")
        )
        known = np.isfinite(positive) & np.isfinite(negative)
        total += np.histogram2d(positive[known], negative[known], bins=(edges, edges))[0]
    return total
