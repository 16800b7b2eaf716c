"""Small marks that panels are made of: dots with intervals, headings, ticks of ratios, legends.

Reads  results of `stats.describe`, axes.
Gives  summary (estimate, low, high and counts of a result), draw_dots, draw_heading, ratio_ticks.
Sign   none of its own.

What has no value says "not estimable" at its place; a value without interval carries a dagger.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from tokensense.errors import FigureError
from tokensense.figures.style import (
    LOOKS,
    NOT_ESTIMABLE,
    SMALLEST_TYPE,
    count_text,
    estimate_text,
    small_type,
    text_width,
)

DAGGER = "†"
COUNTS = (("n_tokens", "token"), ("n_rollouts", "rollout"), ("n_clusters", "problem"))
# From fine to coarse; the first that spans enough of an axis is used.
RATIO_LADDERS = (
    (0.9, 0.95, 1.0, 1.05, 1.1),
    (0.8, 0.9, 1.0, 1.1, 1.2),
    (0.7, 0.85, 1.0, 1.2, 1.4),
    (0.6, 0.8, 1.0, 1.25, 1.6),
    (0.5, 0.7, 1.0, 1.4, 2.0),
    (0.25, 0.5, 1.0, 2.0, 4.0),
    (0.1, 0.3, 1.0, 3.0, 10.0),
    (0.01, 0.1, 1.0, 10.0, 100.0),
)


def summary(result: xr.Dataset) -> xr.Dataset:
    """A result of `stats` with the limits of its interval as variables, its counts beside them.

    Args:
        result: `estimate`, `interval` (bound), `method` (CF flags), `n_clusters`, other counts.

    Returns:
        `estimate`, `low`, `high`, in the result's unit; `method` in words; the counts. Dims without
        `bound`.

    Raises:
        FigureError: a variable is missing.
    """
    needed = ("estimate", "interval", "method", "n_clusters")
    missing = [name for name in needed if name not in result]
    if missing:
        raise FigureError(
            f"A panel of statistics needs {list(needed)}; {missing} are missing, there are "
            f"{sorted(map(str, result.data_vars))}. Give a result of `tokensense analyze`."
        )
    limits = {bound: result["interval"].sel(bound=bound, drop=True) for bound in ("low", "high")}
    counts = {name: result[name] for name, _ in COUNTS if name in result}
    shown = xr.Dataset({"estimate": result["estimate"], **limits, **counts}, attrs=result.attrs)
    return shown.assign(method=(result["method"].dims, _method_words(result["method"])))


def _method_words(method: xr.DataArray) -> np.ndarray:
    """CF flags as words."""
    words = str(method.attrs["flag_meanings"]).split()
    table = dict(zip(np.atleast_1d(method.attrs["flag_values"]).tolist(), words, strict=True))
    codes = method.values
    return np.array([table[int(code)] for code in codes.ravel()], dtype=str).reshape(codes.shape)


def selected(result: xr.Dataset, dim: str, names: Sequence[str]) -> xr.Dataset:
    """The entries of those names, in their order.

    Raises:
        FigureError: one is not there.
    """
    found = result[dim].values.astype(str).tolist() if dim in result.coords else []
    missing = [name for name in names if name not in found]
    if missing:
        raise FigureError(
            f"A panel needs {dim}={missing}; the result has {dim}={found}. "
            "Run `tokensense analyze` again with this version."
        )
    return result.sel({dim: list(names)})


def number_text(one: xr.Dataset) -> str:
    """An estimate with its interval, as text.

    Args:
        one: one entry of a result, or of `summary`.
    """
    bounds = [one["interval"].sel(bound=b) for b in ("low", "high")] if "interval" in one else None
    low, high = bounds or (one["low"], one["high"])
    return estimate_text(float(one["estimate"]), float(low), float(high))


def counts_text(result: xr.Dataset) -> list[str]:
    """What one estimate rests on, in pieces: tokens, rollouts, problem texts.

    Args:
        result: of `summary`, one entry.
    """
    parts = [
        count_text(round(float(result[name])), noun) for name, noun in COUNTS if name in result
    ]
    ends = [*[","] * (len(parts) - 1), ""]
    return [f"{part}{end}" for part, end in zip(["n = " + parts[0], *parts[1:]], ends, strict=True)]


def panel_width(axes: Axes) -> float:
    """Width of the axes' place before layout, inches: a little less than it will have."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return float(axes.get_position(original=True).width * figure.get_size_inches()[0])


def joined(pieces: Sequence[str], width: float, size: float) -> list[str]:
    """Pieces of text on as few lines as fit a width; a piece is never broken.

    Args:
        pieces: of one sentence.
        width: inches.
        size: of the type, points.
    """
    lines = [pieces[0]]
    for piece in pieces[1:]:
        longer = f"{lines[-1]} {piece}"
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


def draw_headings(
    axes: Sequence[Axes], titles: Sequence[str], sentences: Sequence[Sequence[Sequence[str]]]
) -> None:
    """Draw a bold title and small lines under it above each of a row of panels.

    Args:
        axes: panels of one row; their titles stand at one height.
        titles: one a panel.
        sentences: of each panel; a sentence begins a line and breaks between its pieces only.
    """
    size = small_type()
    texts = [
        [line for pieces in each for line in joined(pieces, panel_width(panel), size)]
        for panel, each in zip(axes, sentences, strict=True)
    ]
    most = max(map(len, texts))
    for panel, title, lines in zip(axes, titles, texts, strict=True):
        shown = "\n".join([*lines, *[""] * (most - len(lines))])
        note = panel.annotate(
            shown,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(0, 3),
            textcoords="offset points",
            va="bottom",
            size=size,
            linespacing=1.0,
        )
        # The title holds the height; lines must not take width from the panel.
        note.set_in_layout(False)
        panel.set_title(title, weight="bold", pad=4 + 1.12 * size * most)


def draw_dots(
    axes: Axes, shown: xr.Dataset, *, term: str, height: Float[np.ndarray, " row"]
) -> None:
    """Draw one dot with its interval a row; say where there is none.

    Args:
        axes: where.
        shown: `estimate`, `low`, `high` over one dim of rows, in the unit of the axis.
        term: verdict, placebo or difference: gives color and shape.
        height: where each row stands on the vertical axis.
    """
    look = LOOKS[term]
    estimate, low, high = (
        np.atleast_1d(shown[name].values).astype(np.float64) for name in ("estimate", "low", "high")
    )
    bounded = np.isfinite(estimate) & np.isfinite(low) & np.isfinite(high)
    axes.hlines(height[bounded], low[bounded], high[bounded], color=look.color, linewidth=1.1)
    axes.plot(
        estimate,
        height,
        linestyle="none",
        marker=look.marker,
        markersize=4.0,
        markeredgewidth=0.9,
        markeredgecolor=look.color,
        markerfacecolor=look.color if look.filled else "white",
        zorder=3,
    )
    for row in np.flatnonzero(np.isfinite(estimate) & ~bounded):
        axes.annotate(
            DAGGER,
            xy=(estimate[row], height[row]),
            xytext=(3.5, 1),
            textcoords="offset points",
            size=small_type(),
            color=look.color,
        )
    for row in np.flatnonzero(~np.isfinite(estimate)):
        draw_gap(axes, float(height[row]), term)


def draw_gap(axes: Axes, height: float, term: str) -> None:
    """Say at its place that a term has no value.

    Args:
        axes: where.
        height: where the term's dot would stand on the vertical axis.
        term: gives the color.
    """
    axes.text(
        0.5,
        height,
        NOT_ESTIMABLE,
        transform=axes.get_yaxis_transform(),
        size=SMALLEST_TYPE,
        style="italic",
        color=LOOKS[term].color,
        ha="center",
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        zorder=4,
    )


def draw_legend(
    axes: Axes,
    terms: Sequence[str],
    *,
    dagger: bool,
    note: str | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draw the key of the terms at the top of the figure that holds the axes.

    Args:
        axes: of the figure.
        terms: whose looks to show.
        dagger: whether a value without interval is among what is drawn.
        note: a line above the key.
        names: of terms that are called otherwise here.
    """
    handles = [
        Line2D(
            [],
            [],
            color=look.color,
            marker=look.marker,
            markersize=4.0,
            markerfacecolor=look.color if look.filled else "white",
            label=(names or {}).get(term, term),
        )
        for term, look in ((term, LOOKS[term]) for term in terms)
    ]
    if dagger:
        handles.append(Line2D([], [], linestyle="none", label=f"{DAGGER} no interval"))
    axes.figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        borderaxespad=0.2,
        columnspacing=1.2,
        handletextpad=0.5,
        title=note,
        title_fontsize=small_type(),
    )


def lacks_interval(shown: xr.Dataset) -> bool:
    """Whether a value has no interval."""
    estimate, low = shown["estimate"].values, shown["low"].values
    return bool((np.isfinite(estimate) & ~np.isfinite(low)).any())


def span(shown: xr.Dataset, *, include: float | None = None) -> tuple[float, float]:
    """Limits of an axis that hold every value and interval, with a margin of 6 %.

    Args:
        shown: `estimate`, `low`, `high` in the unit of the axis; NaN is passed over.
        include: a value that must lie inside, such as 0.

    Returns:
        Low and high, apart from each other even where there is one value or none.
    """
    values = np.concatenate([np.ravel(shown[name].values) for name in ("estimate", "low", "high")])
    values = values[np.isfinite(values)]
    if include is not None:
        values = np.append(values, include)
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) or max(0.05 * abs(high), 1e-6)
    return low - margin, high + margin


def set_ratio_ticks(axes: Axes) -> None:
    """Label a horizontal axis of log ratios with the ratios.

    Args:
        axes: its horizontal limits are set already and hold 0, the ratio 1.
    """
    low, high = axes.get_xlim()
    inch = panel_width(axes) / (high - low)
    ladder = next(
        (
            rungs
            for rungs in RATIO_LADDERS
            if math.log(rungs[-1] / rungs[0]) >= 0.6 * (high - low)
            and min(np.diff(np.log(rungs))) * inch >= 0.28
        ),
        RATIO_LADDERS[-1],
    )
    inside = [ratio for ratio in ladder if low <= math.log(ratio) <= high]
    axes.xaxis.set_major_locator(FixedLocator([math.log(ratio) for ratio in inside]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{ratio:g}" for ratio in inside]))
    axes.xaxis.set_minor_locator(NullLocator())


def step_ticks(limit: float, width: float, *, linear_width: float) -> list[float]:
    """Ticks at 0 and powers of ten of an asinh axis, at least .2 inches apart.

    Args:
        limit: half the axis, nats.
        width: of the axis, inches.
        linear_width: of the scale, nats.
    """
    reach, last, ticks = math.asinh(limit / linear_width), 0.0, [0.0]
    for step in (0.01, 0.1, 1.0, 10.0, 100.0):
        place = 0.5 * width * math.asinh(step / linear_width) / reach
        if step <= limit and place - last >= 0.2:
            last, ticks = place, [-step, *ticks, step]
    return ticks
