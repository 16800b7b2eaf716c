"""Panels: each draws a finished Dataset on the axes given and returns what it drew.

Reads  points or densities of `density`; results of `stats.describe`: `triple`, `kind`, `balance`.
Gives  draw_shift_points, draw_shift_density, draw_shift_by_kind, draw_triples; each returns
       Datasets by name, in the units of the axes, so that tests and CSV files need no pixels.
Sign   shift positive: the condition makes the sampled token likelier; log ratio above 0: tokens of
       the kind move more than the others; difference = verdict - placebo.

The placebo stands beside the verdict in every panel, on the same axes and the same color scale.
Call these inside `style.styled`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from tokensense.errors import FigureError
from tokensense.figures.density import LINEAR_WIDTH, TERMS, shift_limit
from tokensense.figures.marks import (
    counts_text,
    draw_dots,
    draw_headings,
    draw_legend,
    lacks_interval,
    number_text,
    panel_width,
    selected,
    set_ratio_ticks,
    span,
    step_ticks,
    summary,
)
from tokensense.figures.style import (
    LOOKS,
    NEUTRAL,
    sequential,
    small_type,
    text_width,
    tick_text,
)
from tokensense.schema import Kind

Drawn = dict[str, xr.Dataset]

DIFFERENCE = "difference"
# Name in the results -> label in the panel.
SHIFT_STATISTICS = {"same_direction": "same direction", "correlation": "correlation"}
TRIPLE_STATISTICS = {
    "same_direction": "same direction\n(share of tokens)",
    "correlation": "correlation of\nz+ and z−",
    "contrast_variance_share": "contrast variance\n(share)",
    "sensitivity_to_surprisal": "sensitivity to\nsurprisal (rank corr.)",
    "mean_absolute_shift": "mean |shift|\n(nats)",
    "mean_absolute_contrast": "mean |contrast|\n(nats)",
}
SCALES = {
    "mean": "mean |shift|\n(nats)",
    "log_ratio": "ratio to all\nother tokens",
    "log_ratio_matched": "ratio to equally\nsurprising tokens",
}
# `other` is the rest, so it comes last; the order of the others is the schema's.
KIND_ORDER = [kind.name.lower() for kind in Kind if kind is not Kind.OTHER] + ["other"]


def draw_shift_points(axes: Sequence[Axes], points: xr.Dataset, *, triple: xr.Dataset) -> Drawn:
    """Scatter z+ against z- of each token, verdict left, placebo right.

    Args:
        axes: two, for verdict and placebo.
        points: of `density.shift_points`.
        triple: result `triple`; its numbers are written above the panels.

    Returns:
        `points` (point) with `pair`, `term`, `token`, and `statistics` (statistic, term).

    Raises:
        FigureError: a term has no token, or the triple lacks a statistic.
    """
    known = (points["negative"] + points["positive"]).notnull()
    for panel, term in zip(axes, TERMS, strict=True):
        chosen = points["term"].values == term
        if not known.values[chosen].any():
            raise _no_tokens(term)
        look = LOOKS[term]
        panel.plot(
            points["negative"].values[chosen].ravel(),
            points["positive"].values[chosen].ravel(),
            linestyle="none",
            marker=look.marker,
            markersize=2.2,
            markeredgewidth=0.4,
            markeredgecolor=look.color,
            markerfacecolor=look.color if look.filled else "none",
            alpha=0.6,
        )
    statistics = _finish_shift_axes(axes, shift_limit(points), triple=triple)
    pair, token = np.nonzero(known.values)
    at = {"pair": xr.DataArray(pair, dims="point"), "token": xr.DataArray(token, dims="point")}
    drawn = points[["negative", "positive"]].isel(at).assign_coords(token=("point", token))
    return {"points": drawn, "statistics": statistics}


def draw_shift_density(axes: Sequence[Axes], density: xr.Dataset, *, triple: xr.Dataset) -> Drawn:
    """Show how many tokens lie where in the plane of z+ and z-, verdict left, placebo right.

    Args:
        axes: two, for verdict and placebo; both take the same limits and the same colors.
        density: of `density.shift_density`.
        triple: result `triple`; its numbers are written above the panels.

    Returns:
        `density` (term, positive_cell, negative_cell) as drawn and `statistics` (statistic, term).

    Raises:
        FigureError: a term has no token, or the triple lacks a statistic.
    """
    for term in TERMS:
        if not density["tokens"].sel(term=term).notnull().any():
            raise _no_tokens(term)
    counts = density["tokens"].values
    fewest = float(np.nanmin(counts))
    # At least a decade, or the color bar of equally full cells would have no length.
    norm = LogNorm(vmin=fewest, vmax=max(10.0 * fewest, float(np.nanmax(counts))))
    borders = {
        axis: np.append(density[f"{axis}_low"].values, density[f"{axis}_high"].values[-1])
        for axis in ("negative", "positive")
    }
    for panel, term in zip(axes, TERMS, strict=True):
        mesh = panel.pcolormesh(
            borders["negative"],
            borders["positive"],
            density["tokens"].sel(term=term).values,
            norm=norm,
            cmap=sequential(),
            # As vectors, viewers would draw a hair line between neighboring cells.
            rasterized=True,
        )
    statistics = _finish_shift_axes(axes, float(borders["positive"][-1]), triple=triple)
    # Inside the panel's own place, so that the bar is as high as the panel.
    beside = axes[-1].inset_axes((1.05, 0.0, 0.05, 1.0))
    bar = axes[0].figure.colorbar(mesh, cax=beside)
    bar.set_label("tokens per cell", size=small_type())
    beside.yaxis.set_major_formatter(FuncFormatter(tick_text))
    beside.yaxis.set_minor_locator(NullLocator())
    return {"density": density[["tokens"]], "statistics": statistics}


def _no_tokens(term: str) -> FigureError:
    return FigureError(
        f"The shift panels need tokens that both conditions of a pair scored; {term!r} has none. "
        "`tokensense info` says which rollouts may not be compared, and why."
    )


def _finish_shift_axes(axes: Sequence[Axes], limit: float, *, triple: xr.Dataset) -> xr.Dataset:
    """Equal limits, lines through 0, the identity, and the numbers above; gives the numbers."""
    chosen = selected(selected(triple, "statistic", list(SHIFT_STATISTICS)), "term", TERMS)
    statistics = summary(chosen)
    ticks = step_ticks(limit, panel_width(axes[0]), linear_width=LINEAR_WIDTH)
    for panel in axes:
        panel.set_xscale("asinh", linear_width=LINEAR_WIDTH)
        panel.set_yscale("asinh", linear_width=LINEAR_WIDTH)
        panel.set_xlim(-limit, limit)
        panel.set_ylim(-limit, limit)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(FuncFormatter(tick_text))
            axis.set_minor_locator(NullLocator())
        panel.set_aspect("equal", adjustable="box")
        panel.axhline(0.0, color=NEUTRAL, linewidth=0.5, zorder=2.5)
        panel.axvline(0.0, color=NEUTRAL, linewidth=0.5, zorder=2.5)
        panel.plot(
            [-limit, limit], [-limit, limit], color="black", linewidth=0.6, linestyle=(0, (4, 3))
        )
        panel.set_xlabel(_fitting(("z−, shift under neg (nats)", "z− (nats)"), panel))
    axes[0].set_ylabel(_fitting(("z+, shift under pos (nats)", "z+ (nats)"), axes[0]))
    draw_headings(axes, TERMS, [_shift_sentences(statistics.sel(term=term)) for term in TERMS])
    axes[1].tick_params(labelleft=False)
    return statistics


def _fitting(labels: Sequence[str], panel: Axes) -> str:
    """The first label that is no wider than the panel; the last if none is."""
    size = float(panel.xaxis.label.get_fontsize())
    return next((x for x in labels if text_width(x, size) <= 0.9 * panel_width(panel)), labels[-1])


def _shift_sentences(statistics: xr.Dataset) -> list[list[str]]:
    """The numbers of one term, and what they rest on, in pieces."""
    numbers = [
        [label, number_text(statistics.sel(statistic=name))]
        for name, label in SHIFT_STATISTICS.items()
    ]
    return [*numbers, counts_text(statistics.sel(statistic="correlation"))]


def draw_shift_by_kind(
    axes: Sequence[Axes],
    kind: xr.Dataset,
    *,
    balance: xr.Dataset,
    scales: Sequence[str] = ("log_ratio", "log_ratio_matched"),
    measure: str = "absolute_shift",
) -> Drawn:
    """Show how far each kind of token moves, verdict beside placebo, one panel a scale.

    Args:
        axes: one a scale; kinds are named on the first, tokens counted on the last.
        kind: result `kind`, dims (scale, measure, kind, term).
        balance: result `balance`; its `matched_share` stands beside the counts.
        scales: of SCALES, from left to right. Ratios share their limits.
        measure: of the result.

    Returns:
        `kinds` (scale, kind, term): estimate, low, high; log ratios as logs, labelled as ratios.

    Raises:
        FigureError: the result lacks a scale, a measure or a term.
    """
    chosen = selected(selected(kind, "measure", [measure]).isel(measure=0), "scale", scales)
    names = _kinds_in_order(kind["kind"].values.astype(str).tolist())
    shown = summary(selected(selected(chosen, "term", TERMS), "kind", names))
    shown = shown.assign(matched_share=balance["matched_share"].sel(kind=names))
    height = np.arange(len(names), dtype=np.float64)
    ratios = [scale for scale in scales if scale != "mean"]
    common = span(shown.sel(scale=ratios), include=0.0)
    for panel, scale in zip(axes, scales, strict=True):
        part = shown.sel(scale=scale)
        panel.set_xlim(span(part, include=0.0) if scale == "mean" else common)
        panel.axvline(0.0, color=NEUTRAL, linewidth=0.6)
        for term, offset in zip(TERMS, (-0.17, 0.17), strict=True):
            draw_dots(panel, part.sel(term=term), term=term, height=height + offset)
        if scale == "mean":
            panel.xaxis.set_major_locator(MaxNLocator(3))
            panel.xaxis.set_major_formatter(FuncFormatter(tick_text))
        else:
            set_ratio_ticks(panel)
        panel.set_xlabel(SCALES[scale], linespacing=1.0)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.yaxis.set_major_locator(FixedLocator(height.tolist()))
        panel.yaxis.set_major_formatter(NullFormatter())
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.5)
        panel.set_axisbelow(True)
    # A formatter that holds its labels, so that missing glyphs can be replaced in them.
    axes[0].yaxis.set_major_formatter(FixedFormatter([name.replace("_", " ") for name in names]))
    _draw_kind_counts(axes[-1], shown)
    draw_legend(axes[0], TERMS, dagger=lacks_interval(shown))
    return {"kinds": shown}


def _kinds_in_order(found: Sequence[str]) -> list[str]:
    """The kinds there are: the schema's in its order, unknown ones after, the rest last."""
    known = [name for name in KIND_ORDER if name in found]
    unknown = sorted(set(found) - set(KIND_ORDER))
    return [
        *(name for name in known if name != "other"),
        *unknown,
        *(["other"] * ("other" in found)),
    ]


def _draw_kind_counts(panel: Axes, shown: xr.Dataset) -> None:
    """Write the tokens of each kind, and the share that was matched, right of the panel."""
    rows = [(-0.5, 2.0, "bottom", "tokens\n(matched)")]
    for row, name in enumerate(shown["kind"].values):
        share = float(shown["matched_share"].sel(kind=name))
        matched = f" ({share:.0%})" if np.isfinite(share) else ""
        count = int(shown["n_tokens"].sel(kind=name))
        rows.append((float(row), 0.0, "center", f"{count:,}{matched}"))
    for height, raised, alignment, text in rows:
        panel.annotate(
            text,
            xy=(1.0, height),
            xycoords=panel.get_yaxis_transform(),
            xytext=(4, raised),
            textcoords="offset points",
            va=alignment,
            size=small_type(),
            linespacing=1.0,
        )


def draw_triples(
    axes: Sequence[Sequence[Axes]],
    triple: xr.Dataset,
    *,
    statistics: Mapping[str, str] = TRIPLE_STATISTICS,
) -> Drawn:
    """Show each statistic as verdict and placebo, left, and their difference against 0, right.

    Args:
        axes: two a statistic.
        triple: result `triple`, dims (statistic, term).
        statistics: name in the result -> label, from top to bottom.

    Returns:
        `triples` (statistic, term): estimate, low, high, counts.

    Raises:
        FigureError: the result lacks a statistic or a term.
    """
    terms = (*TERMS, DIFFERENCE)
    shown = summary(selected(selected(triple, "statistic", list(statistics)), "term", terms))
    for (left, right), (name, label) in zip(axes, statistics.items(), strict=True):
        part = shown.sel(statistic=name)
        for panel, members, include in ((left, TERMS, None), (right, (DIFFERENCE,), 0.0)):
            _draw_triple_row(panel, part.sel(term=list(members)), members, include=include)
        left.set_ylabel(
            label, rotation=0, ha="right", va="center", size=small_type(), linespacing=1.0
        )
    draw_legend(axes[0][0], terms, dagger=lacks_interval(shown))
    return {"triples": shown}


def _draw_triple_row(
    panel: Axes, part: xr.Dataset, members: Sequence[str], *, include: float | None
) -> None:
    """Draw the dots of one statistic in one column."""
    panel.set_xlim(span(part, include=include))
    for row, term in enumerate(members):
        draw_dots(panel, part.sel(term=[term]), term=term, height=np.array([float(row)]))
    panel.set_ylim(len(members) - 0.4, -0.6)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    known = bool(np.isfinite(part["estimate"].values).any())
    panel.xaxis.set_major_locator(MaxNLocator(3) if known else NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(tick_text))
    if known and include is not None:
        panel.axvline(include, color=NEUTRAL, linewidth=0.6)
