"""The credit assay as a figure: learning curves, differences at the primary step, gradients.

Reads  runs, the lines of both tables of `assay_tables`, the table of `studies.learning_value`.
Gives  draw.
Sign   difference = rule - uniform; positive: the rule is better, or points more to where reward is.

Left: accuracy on fixed problems, mean over seeds; the band is its 95 % interval (Student). Middle:
paired differences at the middle step, thick the 95 % interval of one rule, thin the simultaneous
one. Right: cosine with the held-out reward gradient, minus that of uniform, of the same rules,
where it was measured. Rules of the right panels are in the order of the middle one. A rule has one
color and one marker in all panels, rules without a curve are gray, those that know the truth have
a star.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t as student

from tokensense.figures.style import NEUTRAL, new_figure, styled

Row = Mapping[str, Any]
BASELINE = "uniform"
LEVEL = 0.95
NAMED = {"confirm": "confirmation"}
# Okabe and Ito, without yellow, which does not show on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("s", "^", "D", "v", "P", "X")
MOST = len(COLORS)
PLAIN = {"color": "#777777", "marker": "o"}  # rules without a curve
# Shown first, if they were run: those that the question is about.
FIRST = ("oracle_value", "oracle_mask", "contrast", "cscr_0.8", "delta", "random")


def chosen(rules: Sequence[str]) -> list[str]:
    """Rules that get a curve: as many as can be told apart, baseline not counted."""
    known = [rule for rule in FIRST if rule in rules]
    rest = [rule for rule in rules if rule not in (*known, BASELINE)]
    return [*known, *rest][:MOST]


def looks(rules: Sequence[str]) -> dict[str, dict[str, str]]:
    """Color and marker of the baseline and of each rule that gets a curve."""
    shown = zip(chosen(rules), COLORS, MARKERS, strict=False)
    return {
        BASELINE: {"color": "#000000", "marker": "o"},
        **{rule: {"color": color, "marker": marker} for rule, color, marker in shown},
    }


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
    order, shown = _ordered(lines), looks(list(dict.fromkeys(row["rule"] for row in rows)))
    with styled("plain"):
        figure = new_figure(10.0 if fitting else 7.5, max(2.9, 0.19 * len(order) + 0.9))
        widths = [1.5, 1, 1][:panels]
        axes = figure.subplots(1, panels, width_ratios=widths, squeeze=False)[0]
        draw_curves(axes[0], rows, shown)
        draw_differences(axes[1], order, shown)
        if fitting:
            draw_gradients(axes[2], [fitting.get(str(line["rule"])) for line in order], shown)
        # Rules differ in how many seeds they were run with; each says its own.
        seeds = sorted({int(line["pairs"]) for line in order}) or [0]
        many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        figure.suptitle(
            f"Regime {one['regime']}, {one['base']}, learning rate {one['lr']}, "
            f"{many} paired {NAMED.get(one['phase'], one['phase'])} seeds (in brackets), "
            "95 % intervals (thin: simultaneous; *: knows the truth)",
            x=0.01,
            ha="left",
        )
        figure.savefig(path)


def draw_curves(
    axes: Axes, rows: Sequence[Row], shown: Mapping[str, Mapping[str, str]]
) -> dict[str, np.ndarray]:
    """Mean accuracy of each rule shown, by step, with bands.

    Args:
        axes: to draw on.
        rows: runs.
        shown: of `looks`.

    Returns:
        rule -> (step, 3): mean, low, high, as drawn; low and high NaN for a single run.
    """
    steps = sorted(int(n.removeprefix("accuracy_")) for n in rows[0] if n.startswith("accuracy_"))
    drawn = {}
    for rule, look in shown.items():
        own = [row for row in rows if row["rule"] == rule]
        if not own:
            continue
        values = np.array([[float(row[f"accuracy_{step}"]) for step in steps] for row in own])
        drawn[rule] = band(values)
        mean, low, high = drawn[rule].T
        name = _starred(rule, oracle=own[0]["oracle"] == "1")
        axes.plot(steps, mean, markersize=3.5, label=name, **look)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("accuracy on fixed problems")
    axes.set_ylim(0, 1)
    axes.set_xticks(steps)
    axes.legend(loc="upper left", handlelength=1.5)
    return drawn


def band(values: np.ndarray) -> np.ndarray:
    """Mean over runs and its 95 % interval, kept in [0, 1].

    Args:
        values: (run, step) accuracies.

    Returns:
        (step, 3); the ends are NaN for a single run.
    """
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        nothing = np.full_like(mean, math.nan)
        return np.stack([mean, nothing, nothing], axis=1)
    reach = student.isf((1 - LEVEL) / 2, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return np.stack([mean, np.clip(mean - reach, 0, 1), np.clip(mean + reach, 0, 1)], axis=1)


def draw_differences(
    axes: Axes, lines: Sequence[Row], shown: Mapping[str, Mapping[str, str]]
) -> None:
    """Paired differences of the first primary outcome.

    Args:
        axes: to draw on.
        lines: rules but the baseline, the best first.
        shown: of `looks`.
    """
    name = _primary(lines)
    for place, line in enumerate(lines):
        mean = line[f"{name}_mean"]
        look = shown.get(str(line["rule"]), PLAIN)
        if line[f"{name}_low"] != "":
            for ends, width in (("joint_", 0.7), ("", 2.2)):
                low, high = line[f"{name}_{ends}low"], line[f"{name}_{ends}high"]
                axes.plot([low, high], [place, place], linewidth=width, color=look["color"])
        axes.plot([mean], [place], linestyle="", **look)
    spread = [abs(float(line[f"{name}_mean"])) for line in lines] or [0.0]
    # Intervals of two or three seeds are wider than the panel; the differences must be seen.
    axes.set_xlim(-max(0.3, 1.6 * max(spread)), max(0.3, 1.6 * max(spread)))
    names = [
        f"{_starred(str(line['rule']), oracle=line['oracle'] == '1')} ({line['pairs']})"
        for line in lines
    ]
    _finish(axes, names)
    axes.set_xlabel(f"accuracy {name.replace('_', ' step ')},\nminus uniform, paired by seed")


def draw_gradients(
    axes: Axes, lines: Sequence[Row | None], shown: Mapping[str, Mapping[str, str]]
) -> None:
    """Cosine with the reward gradient, minus uniform's.

    Args:
        axes: to draw on.
        lines: of the rules in order; None where it was not measured.
        shown: of `looks`.
    """
    for place, line in enumerate(lines):
        if line is not None:
            ends = [float(line[f"difference_{end}"]) for end in ("low", "high")]
            look = shown.get(str(line["rule"]), PLAIN)
            axes.plot(ends, [place, place], color=look["color"], linewidth=2.2)
            axes.plot([float(line["difference"])], [place], linestyle="", **look)
    _finish(axes, [""] * len(lines))
    axes.set_xlabel("gradient cosine\nat step 0, minus uniform")


def _starred(rule: str, *, oracle: bool) -> str:
    return f"{rule} *" if oracle else rule


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
