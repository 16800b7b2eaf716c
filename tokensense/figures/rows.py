"""Panels of many rows: scores, rules or numbers from top to bottom, a statistic a panel.

Reads  entries with `estimate`, `low`, `high` over (statistic, row, term), made by `entries`.
Gives  Row; entries; draw_rows; row_height.
Sign   that of the statistic; a line stands where there is nothing to be seen (chance, no change).

A row holds the verdict's value and the placebo's beside it, or one value that has no placebo.
Call these inside `style.styled`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
)

from tokensense.errors import FigureError
from tokensense.figures.density import PLACEBO
from tokensense.figures.marks import draw_dots, draw_legend, lacks_interval, panel_width, span
from tokensense.figures.style import NEUTRAL, small_type, tick_text
from tokensense.schema import VERDICT

ALONE = "no placebo"
TERMS = (VERDICT, PLACEBO, ALONE)
OFFSET = 0.17


class Row(NamedTuple):
    """One row.

    Attributes:
        label: as it is drawn.
        terms: term of TERMS -> name of its entry in the result.
        group: rows of one group stand together.
    """

    label: str
    terms: Mapping[str, str]
    group: int = 0


class Panel(NamedTuple):
    """One column of dots.

    Attributes:
        statistic: its name in the result.
        label: of the axis, with the unit.
        line: value at which there is nothing to be seen; None for no line.
    """

    statistic: str
    label: str
    line: float | None = None


def entries(
    summarized: xr.Dataset, rows: Sequence[Row], panels: Sequence[Panel], *, dim: str
) -> xr.Dataset:
    """The entries of a result that rows and panels ask for.

    Args:
        summarized: of `marks.summary`, dims (statistic, `dim`).
        rows: from top to bottom.
        panels: from left to right.
        dim: of the result, over which the rows run.

    Returns:
        Dims (statistic, row, term): `estimate`, `low`, `high`, `method`, counts; NaN and "" where a
        row has no such term. Coordinates `group` (row), `there` (row, term).

    Raises:
        FigureError: the result lacks a row or a statistic.
    """
    wanted = {"statistic": [panel.statistic for panel in panels],
              dim: [name for row in rows for name in row.terms.values()]}  # fmt: skip
    for name, labels in wanted.items():
        lost = sorted(set(labels) - set(summarized[name].values.astype(str).tolist()))
        if lost:
            raise FigureError(
                f"These panels need {name}={lost}; the result has "
                f"{summarized[name].values.tolist()}. Run the command that makes it again."
            )
    chosen = summarized.sel(statistic=wanted["statistic"])
    at = {name: index for index, name in enumerate(chosen[dim].values.astype(str).tolist())}
    there = np.array([[term in row.terms for term in TERMS] for row in rows])
    index = np.array([[at[row.terms.get(term, next(iter(at)))] for term in TERMS] for row in rows])
    kept = chosen.drop_vars([name for name in chosen.coords if name not in ("statistic", "unit")])
    picked = kept.isel({dim: xr.DataArray(index, dims=("row", "term"))})
    shown = picked.where(xr.DataArray(there, dims=("row", "term")))
    method = picked["method"].where(xr.DataArray(there, dims=("row", "term")), "").astype(str)
    return shown.assign(method=method).transpose("statistic", "row", "term").assign_coords(
        row=[row.label for row in rows],
        term=list(TERMS),
        group=("row", [row.group for row in rows]),
        there=(("row", "term"), there),
    )  # fmt: skip


def row_height(small: float) -> float:
    """Height of a row that holds two dots and a line of type, inches.

    Args:
        small: type of the labels, points.
    """
    return 1.75 * small / 72


def draw_rows(
    axes: Sequence[Axes],
    shown: xr.Dataset,
    panels: Sequence[Panel],
    *,
    note: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draw the rows, one panel a statistic; rows are named on the first.

    Args:
        axes: one a panel.
        shown: of `entries`.
        panels: as given there.
        note: what the numbers rest on; stands at the top.
        names: of terms that are called otherwise here.
    """
    group = shown["group"].values
    height = np.arange(group.size) + 0.6 * np.concatenate([[0], np.cumsum(np.diff(group) != 0)])
    for axis, panel in zip(axes, panels, strict=True):
        part = shown.sel(statistic=panel.statistic)
        axis.set_xlim(span(part, include=panel.line))
        if panel.line is not None:
            axis.axvline(panel.line, color=NEUTRAL, linewidth=0.6)
        _draw_terms(axis, part, height)
        axis.xaxis.set_major_locator(
            MaxNLocator(max(2, int(panel_width(axis) / 0.3)), steps=[1, 2, 5, 10])
        )
        axis.xaxis.set_major_formatter(FuncFormatter(tick_text))
        axis.set_xlabel(panel.label, linespacing=1.0)
        axis.set_ylim(height[-1] + 0.6, -0.6)
        axis.yaxis.set_major_locator(FixedLocator(height.tolist()))
        axis.yaxis.set_major_formatter(NullFormatter())
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[0].yaxis.set_major_formatter(FixedFormatter(shown["row"].values.tolist()))
    axes[0].tick_params(axis="y", labelsize=small_type())
    terms = [term for term in TERMS if bool(shown["there"].sel(term=term).any())]
    draw_legend(axes[0], terms, dagger=lacks_interval(shown), note=note, names=names)


def _draw_terms(axis: Axes, part: xr.Dataset, height: np.ndarray) -> None:
    """Dots of one panel: two of a row stand above each other, one stands in the middle."""
    there: np.ndarray = np.asarray(part["there"].values)
    both = np.logical_and(there[:, 0], there[:, 1])
    for place, term in enumerate(TERMS):
        rows = np.flatnonzero(there[:, place])
        if rows.size:
            moved = np.where(both[rows], (-OFFSET, OFFSET, 0.0)[place], 0.0)
            draw_dots(axis, part.isel(term=place, row=rows), term=term, height=height[rows] + moved)
