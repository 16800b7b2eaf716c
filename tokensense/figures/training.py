"""The set `training`: does a run learn, and is it well?

Reads  `training` of `stats.runs.side_by_side`: numbers of steps and evaluations, a dim `run`.
Gives  FIGURES: learning curves, health.
Sign   none of its own.

A run has a color, a dash and a mark of its own. Held-out accuracy has its interval over problems;
what the trainer found wrong stands as a cross on the curve of its sign.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tokensense.errors import FigureError
from tokensense.figures.spec import FigureSpec, Inputs, Rendered
from tokensense.figures.style import Style, estimate_text, new_figure, small_type, tick_text

ACCURACY = "held_out_accuracy"
# Okabe & Ito without the yellow, which is too light for a line, each with a dash and a mark.
Dash = Literal["-"] | tuple[float, Sequence[float]]
RUNS: tuple[tuple[str, Dash, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (4, 2)), "s"),
    ("#009E73", (0, (1, 1)), "^"),
    ("#CC79A7", (0, (5, 1, 1, 1)), "D"),
    ("#56B4E9", (0, (3, 1, 1, 1, 1, 1)), "v"),
    ("#000000", (0, (6, 3)), "x"),
)
# Number -> label, sign of the health checks that is read off it.
HEALTH = {
    "entropy": ("entropy\n(nats)", "entropy"),
    "length": ("length\n(tokens)", ""),
    "capped": ("at the limit\n(share)", "length"),
    "repetition": ("repeated\n(share)", "repetition"),
    "effective_tokens": ("effective tokens\n(share)", "tokens"),
    "gradient_norm": ("gradient\nnorm", "gradient"),
}


def draw_curves(axes: Axes, runs: xr.Dataset, name: str, *, sign: str = "") -> None:
    """Draw a number of every run over its steps.

    Args:
        axes: where.
        runs: of `side_by_side`.
        name: of the number, over `step` or `evaluation`; with `_low` and `_high` where there are.
        sign: of the findings that stand on these curves.
    """
    dim = str(next(d for d in runs[name].dims if d != "run"))
    steps = runs[dim].values
    for place, run in enumerate(runs["run"].values):
        color, dash, mark = RUNS[place]
        values = runs[name].sel(run=run).values
        known = np.isfinite(values)
        few = int(known.sum()) <= 12
        axes.plot(
            steps[known],
            values[known],
            color=color,
            linestyle=dash,
            linewidth=0.9,
            marker=mark if few else None,
            markersize=3.0,
        )
        if f"{name}_low" in runs:
            low, high = (runs[f"{name}_{side}"].sel(run=run).values for side in ("low", "high"))
            axes.fill_between(
                steps[known], low[known], high[known], color=color, alpha=0.18, linewidth=0
            )
        at = [event["step"] for event in findings_of(runs, str(run)) if event["sign"] == sign]
        for step in (step for step in at if sign and step in steps[known]):
            height = float(values[np.flatnonzero(steps == step)[0]])
            axes.plot([step], [height], marker="X", markersize=6, color=color, zorder=4)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(tick_text))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if float(runs[name].min()) >= 0:  # no axis below 0 for what cannot be there
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))


def findings_of(runs: xr.Dataset, run: str) -> list[dict[str, Any]]:
    """What the trainer found wrong with a run.

    Args:
        runs: of `side_by_side`.
        run: its name.
    """
    found = json.loads(str(runs["findings"].sel(run=run).item()) or "[]")
    return [dict(event) for event in found]


def _key(axes: Axes, runs: xr.Dataset, *, crosses: bool, note: str) -> None:
    """Which line is which run."""
    handles = [
        Line2D([], [], color=color, linestyle=dash, marker=mark, markersize=3.0, label=str(run))
        for run, (color, dash, mark) in zip(runs["run"].values, RUNS, strict=False)
    ]
    if crosses:
        handles.append(
            Line2D([], [], color="#666666", linestyle="none", marker="X", label="found wrong")
        )
    axes.figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), 3),
        borderaxespad=0.2,
        columnspacing=1.2,
        handletextpad=0.5,
        handlelength=2.6,
        title=note,
        title_fontsize=small_type(),
    )


def _require(runs: xr.Dataset, names: Mapping[str, object]) -> None:
    """Check that there is something to draw, and not too much to tell apart."""
    if runs.sizes["run"] > len(RUNS):
        raise FigureError(
            f"Learning curves need at most {len(RUNS)} runs to be told apart; there are "
            f"{runs.sizes['run']}: {runs['run'].values.tolist()}. Name fewer with --run, or keep "
            "them in stores of their own."
        )
    lost = [name for name in names if name not in runs or not runs[name].notnull().any()]
    if len(lost) == len(names):
        raise FigureError(
            f"Learning curves need {list(names)}; the runs have "
            f"{sorted(map(str, runs.data_vars))}. Let `tokensense train` do a step, with "
            "`evaluate_every` in its settings."
        )


def _curves(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Held-out accuracy and training reward."""
    runs = inputs["training"]
    names = {ACCURACY: "held-out accuracy", "reward": "reward in training"}
    _require(runs, names)
    figure = new_figure(width, 0.5 * width + 0.35)
    axes = list(figure.subplots(1, 2))
    for panel, (name, label) in zip(axes, names.items(), strict=True):
        if name in runs and runs[name].notnull().any():
            draw_curves(panel, runs, name, sign="reward" if name == ACCURACY else "")
        else:
            panel.text(0.5, 0.5, "not evaluated", transform=panel.transAxes, ha="center",
                       size=small_type(), style="italic")  # fmt: skip
        panel.set_ylabel(label)
        panel.set_xlabel("updates")
    _key(axes[0], runs, crosses=_has(runs, {"reward"}), note=_basis(runs))
    drawn = {
        part: runs[kept].drop_vars(["findings", "config"])
        for part, kept in (
            ("evaluations", [n for n in runs if str(n).startswith(ACCURACY)]),
            ("steps", [n for n in ("reward",) if n in runs]),
        )
        if kept
    }
    parts = [
        "Left: share of right responses to held-out problems (mean over problems), band: 95 % "
        "interval over problems, each evaluation by itself; one seed a run, what another would "
        "give is not in it. Right: mean reward of the rollouts of a step, no interval.",
        *(_ended(runs, str(run)) for run in runs["run"].values),
        *_about(runs),
    ]
    return Rendered(figure, drawn, " ".join(parts))


def _health(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Six numbers that move before a run collapses."""
    runs = inputs["training"]
    _require(runs, HEALTH)
    figure = new_figure(width, 0.62 * width + 0.6)
    axes = figure.subplots(2, 3).ravel()
    for panel, (name, (label, sign)) in zip(axes, HEALTH.items(), strict=True):
        panel.set_title(label, size=small_type(), linespacing=1.0)
        if name in runs and runs[name].notnull().any():
            draw_curves(panel, runs, name, sign=sign)
        panel.tick_params(labelsize=small_type())
    for panel in axes[3:]:
        panel.set_xlabel("updates")
    signs = {sign for _, sign in HEALTH.values() if sign}
    _key(axes[0], runs, crosses=_has(runs, signs), note=_basis(runs))
    kept = [name for name in HEALTH if name in runs]
    events = [
        f"{run}, after {event['step']} updates: {event['message']}"
        for run in runs["run"].values
        for event in findings_of(runs, str(run))
    ]
    parts = [
        "Health of training: entropy of what was drawn, length of responses, share that reached "
        "the limit on tokens, share of repeated runs of four tokens, effective tokens of the "
        "update, gradient norm before it is cut. Values of single steps, no intervals.",
        *_about(runs),
        *(["Found wrong: " + " ".join(events)] if events else ["Nothing was found wrong."]),
    ]
    drawn = runs[kept].drop_vars(["findings", "config"])
    return Rendered(figure, {"health": drawn}, " ".join(parts))


def _has(runs: xr.Dataset, signs: set[str]) -> bool:
    return any(
        event["sign"] in signs
        for run in runs["run"].values
        for event in findings_of(runs, str(run))
    )


def _ended(runs: xr.Dataset, run: str) -> str:
    """The last evaluation of a run in words."""
    if ACCURACY not in runs:
        return f"{run}: not evaluated."
    one = runs.sel(run=run)
    known = np.flatnonzero(np.isfinite(one[ACCURACY].values))
    if not known.size:
        return f"{run}: not evaluated."
    last = one.isel(evaluation=int(known[-1]))
    limits = [float(last[f"{ACCURACY}_{side}"]) for side in ("low", "high")]
    count = int(last["held_out_problems"])
    number = estimate_text(float(last[ACCURACY]), *limits)
    rule, seed = (str(runs[name].sel(run=run).item()) for name in ("rule", "seed"))
    return (
        f"{run} (rule {rule}, seed {seed}): {number} after {int(last['evaluation'])} updates, "
        f"n = {count:,} problems."
    )


def _basis(runs: xr.Dataset) -> str:
    """What the numbers of an evaluation and of a step rest on."""
    said = []
    counts = {"held_out_problems": "held-out problems", "rollouts": "responses a step"}
    for name, words in counts.items():
        if name in runs and runs[name].notnull().any():
            low, high = (int(f(runs[name].values)) for f in (np.nanmin, np.nanmax))
            said.append(f"{low:,} {words}" if low == high else f"{low:,} to {high:,} {words}")
    return "n = " + ", ".join(said or ["not known"])


def _about(runs: xr.Dataset) -> list[str]:
    """Who was trained on what."""
    said = [f"{_basis(runs)}.", f"Policy trained: {runs.attrs['scored_by']}."]
    if runs.attrs.get("task"):
        said.append(f"Task: {runs.attrs['task']}.")
    return said


FIGURES = {
    "learning_curves": FigureSpec(("training",), _curves),
    "training_health": FigureSpec(("training",), _health),
}
