"""The credit assay as a figure: learning curves, differences at the primary step, gradients.

Reads  runs, the lines of both tables of `assay_tables`, the table of `studies.learning_value`.
Gives  draw.
Sign   difference = rule - uniform; positive: the rule is better, or points more to where reward is.

Left: accuracy on fixed problems, mean over seeds; the band is one standard error of it. Middle:
paired differences at the middle step, thick the interval of one rule, thin the simultaneous one.
Right: cosine with the held-out reward gradient, minus that of uniform, of the same rules, where it
was measured. Rules of the right panels are in the order of the middle one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tokensense.figures.style import NEUTRAL, new_figure, styled

Row = Mapping[str, Any]
BASELINE = "uniform"
# Okabe and Ito, without yellow, which does not show on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("s", "^", "D", "v", "P", "X")
MOST = len(COLORS)
# Shown first, if they were run: those that the question is about.
FIRST = ("oracle_value", "oracle_mask", "contrast", "cscr_0.8", "delta", "random")


def chosen(rules: Sequence[str]) -> list[str]:
    """Rules that get a curve: as many as can be told apart, baseline not counted."""
    known = [rule for rule in FIRST if rule in rules]
    rest = [rule for rule in rules if rule not in (*known, BASELINE)]
    return [*known, *rest][:MOST]


def draw(path: Path, rows: Sequence[Row], lines: Sequence[Row], gradients: Sequence[Row]) -> None:
    """Draw runs of one regime, base, learning rate and phase.

    Args:
        path: of the PNG.
        rows: the runs.
        lines: of both tables, for these runs.
        gradients: of all regimes and bases; those that fit are taken.
    """
    one = rows[0]
    fitting = {
        line["rule"]: line
        for line in gradients
        if (line["regime"], line["base"], int(line["steps"])) == (one["regime"], one["base"], 0)
    }
    panels = 3 if fitting else 2
    order = _ordered(lines)
    with styled("plain"):
        figure = new_figure(10.0 if fitting else 7.5, max(2.9, 0.19 * len(order) + 0.9))
        widths = [1.5, 1, 1][:panels]
        axes = figure.subplots(1, panels, width_ratios=widths, squeeze=False)[0]
        draw_curves(axes[0], rows)
        draw_differences(axes[1], order)
        if fitting:
            draw_gradients(axes[2], [fitting.get(str(line["rule"])) for line in order])
        seeds = sorted({int(row["seed"]) for row in rows})
        figure.suptitle(
            f"Regime {one['regime']}, {one['base']}, learning rate {one['lr']}, "
            f"{one['phase']} seeds ({len(seeds)})",
            x=0.01,
            ha="left",
        )
        figure.savefig(path)


def draw_curves(axes: Axes, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Mean accuracy of each rule shown, by step, with bands.

    Args:
        axes: to draw on.
        rows: runs.

    Returns:
        rule -> (step, 3): mean, low, high, as drawn; low and high NaN for a single run.
    """
    steps = sorted(int(n.removeprefix("accuracy_")) for n in rows[0] if n.startswith("accuracy_"))
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    looks = {BASELINE: ("#000000", "o")} | {
        rule: (COLORS[i], MARKERS[i]) for i, rule in enumerate(chosen(rules))
    }
    drawn = {}
    for rule, (color, marker) in looks.items():
        own = [row for row in rows if row["rule"] == rule]
        if not own:
            continue
        values = np.array([[float(row[f"accuracy_{step}"]) for step in steps] for row in own])
        drawn[rule] = band(values)
        mean, low, high = drawn[rule].T
        axes.plot(
            steps, mean, color=color, marker=marker, markersize=3.5, label=f"{rule} ({len(own)})"
        )
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("accuracy on fixed problems")
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left", handlelength=1.5)
    return drawn


def band(values: np.ndarray) -> np.ndarray:
    """Mean over runs and one standard error around it, kept in [0, 1].

    Args:
        values: (run, step) accuracies.

    Returns:
        (step, 3); the ends are NaN for a single run.
    """
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        nothing = np.full_like(mean, math.nan)
        return np.stack([mean, nothing, nothing], axis=1)
    reach = values.std(axis=0, ddof=1) / math.sqrt(n)
    return np.stack([mean, np.clip(mean - reach, 0, 1), np.clip(mean + reach, 0, 1)], axis=1)


def draw_differences(axes: Axes, lines: Sequence[Row]) -> None:
    """Paired differences of the first primary outcome.

    Args:
        axes: to draw on.
        lines: rules but the baseline, the best first.
    """
    name = _primary(lines)
    for place, line in enumerate(lines):
        mean = line[f"{name}_mean"]
        look = {"color": "#D55E00" if line["oracle"] == "1" else "#0072B2"}
        if line[f"{name}_low"] != "":
            for ends, width in (("joint_", 0.7), ("", 2.2)):
                low, high = line[f"{name}_{ends}low"], line[f"{name}_{ends}high"]
                axes.plot([low, high], [place, place], linewidth=width, **look)
        axes.plot([mean], [place], marker="o", **look)
    spread = [abs(float(line[f"{name}_mean"])) for line in lines] or [0.0]
    # Intervals of two or three seeds are wider than the panel; the differences must be seen.
    axes.set_xlim(-max(0.3, 1.6 * max(spread)), max(0.3, 1.6 * max(spread)))
    _finish(axes, [str(line["rule"]) for line in lines])
    axes.set_xlabel(f"accuracy {name.replace('_', ' step ')}, minus uniform\n(orange: oracles)")


def draw_gradients(axes: Axes, lines: Sequence[Row | None]) -> None:
    """Cosine with the reward gradient, minus uniform's.

    Args:
        axes: to draw on.
        lines: of the rules in order; None where it was not measured.
    """
    for place, line in enumerate(lines):
        if line is not None:
            ends = [float(line[f"difference_{end}"]) for end in ("low", "high")]
            axes.plot(ends, [place, place], color=NEUTRAL, linewidth=2.2)
            axes.plot([float(line["difference"])], [place], marker="D", color="#000000")
    _finish(axes, [""] * len(lines))
    axes.set_xlabel("gradient cosine, minus uniform")


def _finish(axes: Axes, names: Sequence[str]) -> None:
    axes.axvline(0, color=NEUTRAL, linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _primary(lines: Sequence[Row]) -> str:
    """Name of the first outcome that is compared."""
    names = (name for line in lines for name in line if name.endswith("_mean"))
    return next(names, "auc_mean").removesuffix("_mean")


def _ordered(lines: Sequence[Row]) -> list[Row]:
    """Rules with a difference, the best first."""
    name = _primary(lines)
    known = [line for line in lines if line["rule"] != BASELINE and line[f"{name}_mean"] != ""]
    return sorted(known, key=lambda line: -float(line[f"{name}_mean"]))
