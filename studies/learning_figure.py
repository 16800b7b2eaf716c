"""The learning-value study as two figures: which rules point where reward is gained, and why.

    python -m studies.learning_figure --out data/learning_value

Reads  `table.csv` and `shares.csv` of `studies.learning_value`.
Gives  `rules.png`: cosine with the held-out reward gradient, rule minus uniform, a panel a regime.
       `shares.png`: whose the update is, shares of its squared norm by kind of token (E4).
Sign   positive: the rule's gradient lies nearer to that of reward than uniform credit's.

One mark a base policy, three trained independently, each with the 95 % interval over its batches.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from studies.learning_tables import read
from tokensense.figures.style import NEUTRAL, new_figure, styled

Row = Mapping[str, str]
MARKERS = ("o", "s", "^")
BLUE, ORANGE, BLACK = "#0072B2", "#D55E00", "#000000"
ORACLES = ("oracle_mask", "oracle_value")
# In the first figure: a rule that is uniform by construction, and the smaller of two strengths.
UNSHOWN = ("uniform", "cscr_0", "cscr_0.2", "placebo_0.2", "cscr_surprisal_0.2")
KINDS = {
    "first_wrong": ("first wrong token", ORANGE),
    "computed_digit": ("computed digits", BLUE),
    "discourse": ("fillers", NEUTRAL),
}
SHARED_RULES = ("uniform", "cscr_0.8", "delta", "optw", "contrast", "oracle_value")


def bases(rows: Sequence[Row]) -> dict[str, str]:
    """Marker of each base, in the order of the table."""
    names = sorted({row["base"] for row in rows}, key=lambda base: ("tiny" not in base, base))
    return dict(zip(names, MARKERS, strict=False))


def draw_rules(axes: Axes, rows: Sequence[Row], order: Sequence[str]) -> int:
    """Differences of one regime at step 0; gives how many were drawn."""
    marker, drawn = bases(rows), 0
    for row in rows:
        if row["rule"] in order:
            color = ORANGE if row["rule"] in ORACLES else BLUE
            _mark(axes, row, "difference", place=order.index(row["rule"]), color=color, of=marker)
            drawn += 1
    axes.axvline(0, color=NEUTRAL, linewidth=0.6, linestyle=":")
    _ticks(axes, order)
    return drawn


def draw_shares(axes: Axes, rows: Sequence[Row], rules: Sequence[str]) -> int:
    """Shares of squared norm, a color a kind of token; gives how many were drawn."""
    marker, drawn = bases(rows), 0
    for row in rows:
        if row["rule"] in rules and row["kind"] in KINDS:
            _, color = KINDS[row["kind"]]
            _mark(axes, row, "norm", place=rules.index(row["rule"]), color=color, of=marker)
            drawn += 1
    for label, color in KINDS.values():
        axes.plot([], [], "o", color=color, label=label, markersize=3.5)
    axes.set_xlim(-0.02, 1)
    _ticks(axes, rules)
    return drawn


def _mark(
    axes: Axes, row: Row, name: str, *, place: int, color: str, of: Mapping[str, str]
) -> None:
    """One estimate and its interval; bases a little apart."""
    y = place + 0.22 * (list(of).index(row["base"]) - (len(of) - 1) / 2)
    axes.plot(
        [float(row[f"{name}_low"]), float(row[f"{name}_high"])], [y, y], color=color, linewidth=0.9
    )
    axes.plot([float(row[name])], [y], of[row["base"]], color=color, markersize=2.8)


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    """What marks and colors say: base policies; rules that know exact values, and all others."""
    shown = [(marker, NEUTRAL, _said(base)) for base, marker in bases(rows).items()]
    shown += [("o", BLUE, "rule"), ("o", ORANGE, "knows the truth")]
    figure.legend(
        handles=[
            Line2D([], [], marker=m, color=color, linestyle="", markersize=3.5, label=label)
            for m, color, label in shown
        ],
        loc="outside upper center",
        ncols=len(shown),
        handletextpad=0.2,
    )


def _said(base: str) -> str:
    """A base in words: the shipped policy, or the folder that holds it."""
    return "shipped base" if base.startswith("tiny:") else f"base {Path(base).parent.name}"


def _ticks(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def main(out: Path) -> None:
    """Both figures, of the runs at step 0."""
    rows = [row for row in read(out / "table.csv") if row["steps"] == "0"]
    split = [row for row in read(out / "shares.csv") if row["steps"] == "0"]
    regimes = sorted({row["regime"] for row in rows})
    first = [r for r in rows if r["regime"] == regimes[0] and r["rule"] not in UNSHOWN]
    mean: dict[str, float] = {}
    for row in first:
        mean[row["rule"]] = mean.get(row["rule"], 0.0) - float(row["difference"])
    order = sorted(mean, key=mean.__getitem__)
    with styled("plain"):
        figure = new_figure(8.0, 0.9 + 0.21 * len(order))
        panels = figure.subplots(1, len(regimes), sharey=True, squeeze=False)[0]
        for axes, regime in zip(panels, regimes, strict=True):
            own = [row for row in rows if row["regime"] == regime]
            draw_rules(axes, own, order)
            level = [float(row["cosine"]) for row in own if row["rule"] == "uniform"]
            count = sum(int(row["batches"]) for row in own if row["rule"] == "uniform")
            ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(level), max(level))))
            axes.set_title(f"regime {regime}: uniform {ends}, n {count}", fontsize="medium")
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_xlabel("cosine with reward gradient,\nrule minus uniform")
        _legend(figure, rows)
        figure.savefig(out / "rules.png")
        figure = new_figure(5.0, 0.9 + 0.28 * len(SHARED_RULES))
        axes = figure.subplots()
        own = [row for row in split if row["regime"] == regimes[0]]
        draw_shares(axes, own, SHARED_RULES)
        n = sum(int(r["batches"]) for r in own if (r["rule"], r["kind"]) == ("uniform", "format"))
        axes.set_xlabel(f"share of the update's squared norm (regime {regimes[0]}, n {n} batches)")
        figure.legend(loc="outside upper center", ncols=len(KINDS), handletextpad=0.2)
        figure.savefig(out / "shares.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/learning_value"))
    given = parser.parse_args()
    if not (given.out / "table.csv").exists():
        sys.exit(
            f"learning_figure needs table.csv and shares.csv; {given.out} has none. Run "
            "studies.learning_value first, or name its --out."
        )
    main(given.out)
