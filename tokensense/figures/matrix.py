"""A matrix of numbers with intervals: what is told from nothing is colored, all is written.

Reads  `estimate`, `low`, `high` over (row, column).
Gives  draw_matrix; matrix_size.
Sign   blue above zero, orange below; a minus sign or a ratio below 1 says the same in grey.

A cell is colored only where its interval leaves out zero; where it does not, its number is grey.
Cells too small for numbers carry a hatch where they lie below zero. Call this inside `styled`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator

from tokensense.figures.marks import DAGGER
from tokensense.figures.style import SMALLEST_TYPE, small_type, text_width

WIDEST = "−0.00"
EXACT, ROUNDING = "none_no_variation", 1e-9
CELL_HEIGHT = 1.6
HATCH = "//////"


def diverging() -> LinearSegmentedColormap:
    """Orange below zero, blue above, paper at zero; the ends are light enough for black type."""
    ends = [(0.94, 0.62, 0.35), (1.0, 1.0, 1.0), (0.45, 0.70, 0.90)]
    return LinearSegmentedColormap.from_list("signed", ends)


def matrix_size(rows: int) -> float:
    """Height of a matrix of that many rows, inches."""
    return rows * CELL_HEIGHT * SMALLEST_TYPE / 72


def draw_matrix(
    axes: Axes,
    shown: xr.Dataset,
    *,
    limit: float,
    text: Callable[[float], str],
    labels: tuple[Sequence[str], Sequence[str]],
    width: float,
) -> None:
    """Draw a matrix.

    Args:
        axes: where; every cell is one unit wide and high.
        shown: dims (row, column): `estimate`, `low`, `high`, `method` in words; NaN is a dash.
        limit: value of the deepest color.
        text: of a number, at most as wide as WIDEST.
        labels: of rows and of columns.
        width: of a cell, inches: numbers are written where they fit, daggers always.
    """
    estimate, low, high = (shown[name].values for name in ("estimate", "low", "high"))
    methods = shown["method"].values
    colors, norm = diverging(), Normalize(-limit, limit, clip=True)
    fits = text_width(WIDEST, SMALLEST_TYPE) * 1.08 <= width
    for row, column in np.argwhere(np.isfinite(estimate)):
        value = float(estimate[row, column])
        bounded = np.isfinite(low[row, column])
        # What no resample changes is its own interval.
        exact = methods[row, column] == EXACT and abs(value) > ROUNDING
        told = low[row, column] > 0 or high[row, column] < 0 or exact
        hatched = told and value < 0 and not fits
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                1.0,
                1.0,
                facecolor=colors(norm(value)) if told else "white",
                edgecolor="#a8a8a8" if hatched else "#e6e6e6",
                hatch=HATCH if hatched else None,
                linewidth=0.4,
            )
        )
        mark = DAGGER * (not bounded and not exact and abs(value) > ROUNDING)
        if fits or mark:
            axes.text(
                column,
                row,
                text(value) * fits + mark,
                ha="center",
                va="center_baseline",
                size=SMALLEST_TYPE,
                color="black" if told else "#6a6a6a",
            )
    for row, column in np.argwhere(~np.isfinite(estimate)):
        axes.text(column, row, "–", ha="center", va="center", size=SMALLEST_TYPE, color="#6a6a6a")
    rows, columns = estimate.shape
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    for axis, names in zip((axes.yaxis, axes.xaxis), labels, strict=True):
        axis.set_major_locator(FixedLocator(range(len(names))))
        axis.set_major_formatter(FixedFormatter(list(names)))
    axes.tick_params(length=0, labelsize=small_type())
    axes.tick_params(axis="x", rotation=90)
    axes.spines[["left", "bottom"]].set_visible(False)


def draw_key(axes: Axes, *, low: str, high: str, neither: str, note: str) -> None:
    """Say in a line above a matrix what its colors mean, and its daggers where it has any.

    Args:
        axes: of the matrix.
        low: what a number below zero says.
        high: what one above says.
        neither: what an interval with zero in it says.
        note: what the numbers rest on; stands above the key.
    """
    handles: list[Artist] = [
        Rectangle((0, 0), 1, 1, facecolor=diverging()(at), edgecolor="#9a9a9a", linewidth=0.4,
                  label=name)
        for at, name in ((0.0, low), (1.0, high))
    ]  # fmt: skip
    handles.append(
        Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="#9a9a9a", linewidth=0.4,
                  label=neither)
    )  # fmt: skip
    if any(DAGGER in cell.get_text() for cell in axes.texts):
        handles.append(Line2D([], [], linestyle="", label=f"{DAGGER} no interval"))
    axes.figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        borderaxespad=0.2,
        columnspacing=1.0,
        handletextpad=0.4,
        handlelength=1.0,
        title=note,
        title_fontsize=small_type(),
    )
