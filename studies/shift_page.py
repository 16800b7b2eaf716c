"""What `shift_diagnosis` found, as a page of plain words and one figure.

Reads  lines of decision.csv and triples.csv, one store after the other; findings on claims.
Gives  page (text) and `decision.png`: the three endpoints of every store, side by side.
Sign   E1, E3 above 0: more than irrelevant words do; E2 above .5: right responses score higher.
"""

import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from studies.shift_claims import Finding
from tokensense.figures.style import NEUTRAL, new_figure, styled
from tokensense.stats.claims import judge, read_claims

BLUE = "#0072B2"
PANELS = {
    "read": ("E1: lambda,\nverdict minus placebos", 0.0),
    "informative": ("E2: AUROC,\nright against wrong", 0.5),
    "beyond": ("E3: AUROC of wrong step,\nincrease by shifts", 0.0),
}
HEAD = """# What shifts under verdicts say

Words by thresholds that were fixed before any run (`tokensense.stats.decision`): `placebo_like`,
the verdict does not rank first among itself and irrelevant word pairs (E1); then
`read_and_informative`, the 90 % interval of the within-problem AUROC lies above .56 (E2),
`read_not_informative`, it lies within .44 and .56, `inconclusive`, neither or not estimable.
Brackets: 95 % intervals over problem texts. p of E1 cannot be smaller than 1 / (families + 1).
A number without a bracket has no interval: too few problem texts, or nothing that varies.
The two words of an irrelevant pair have no right order: its AUROC is as far from .5 as it gets, to
either side. A verdict whose AUROC is no farther says nothing that an irrelevant word does not.
"""


def would_change(own: pd.DataFrame) -> str:
    """What would give a store another word, in a sentence or two.

    Args:
        own: lines of decision.csv of one store.
    """
    lines = own.set_index("endpoint")
    word = str(own["word"].iloc[0])
    said, told = str(lines.loc["read", "statement"]), lines.loc["informative"]
    known = not (math.isnan(told["estimate"]) or "not estimable" in told["statement"])
    more = (
        f"E2's 90 % interval, about {told['estimate']:.3f} now, wholly above .56 or within .44, .56"
        if known
        else f"E2: {told['statement']}"
    )
    first = said.split(",", maxsplit=1)[0].removeprefix("verdict ")
    if word == "placebo_like":
        return (
            f"The verdict would have to rank first ({first}). With one word pair a family any "
            "word is consistent over sentences: two pairs a family ask what words mean."
        )
    if word == "not_estimable":
        alone = f" E2 by itself: {told['estimate']:.3f}; {told['statement']}."
        return f"E1 has no word here ({said}).{'' if math.isnan(told['estimate']) else alone}"
    another = f"An irrelevant family above the verdict (it {first}) would make it placebo_like."
    if word == "inconclusive":
        return f"To settle it: {more}. {another}"
    return f"It would fall with E2's 90 % interval, about {told['estimate']:.3f}, at .56. {another}"


def page(
    decisions: pd.DataFrame,
    said: Mapping[str, tuple[str, str]],
    *,
    claims: Mapping[str, Mapping[int, Finding]],
) -> str:
    """The decisions, and what would change them.

    Args:
        decisions: lines of decision.csv.
        said: store -> statement of the table, planted truth or nothing.
        claims: store -> row of the claims ledger -> finding.
    """
    lines = [HEAD]
    for name, own in decisions.groupby("store", sort=False):
        statement, truth = said[str(name)]
        lines += [f"## {name}", ""]
        lines += [f"Planted truth: {truth}.", ""] * bool(truth)
        lines += [f"**{own['word'].iloc[0]}**: {statement}.", ""]
        lines += [f"* {row['meaning']}: {_number(row)}" for row in own.to_dict("records")]
        lines += ["", f"What would change the word: {would_change(own)}", ""]
        lines += _claims(claims.get(str(name), {}))
    return "\n".join(lines).rstrip() + "\n"


def _number(row: Mapping[Hashable, Any]) -> str:
    """Estimate, interval, p and n of one endpoint, and what has to be said beside."""
    if math.isnan(row["estimate"]):
        return str(row["statement"])
    tested = f", p {row['p']:.3g}, Holm {row['p_holm']:.3g}" if not math.isnan(row["p"]) else ""
    return (
        f"{row['estimate']:.3f}{_limits(row['low'], row['high'])}{tested}; "
        f"{row['n_clusters']:.0f} texts, {row['n_rollouts']:.0f} rollouts. {row['statement']}"
        f"{'. ' * bool(row['beside'])}{row['beside']}"
    )


def _limits(low: float, high: float) -> str:
    """In brackets; nothing where there are none."""
    return "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"


def _claims(found: Mapping[int, Finding]) -> list[str]:
    """A line a row of the ledger."""
    if not found:
        return []
    rows = read_claims()
    lines = ["Published claims, by criteria fixed before:", ""]
    for number, one in sorted(found.items()):
        claim = rows[number]
        verdict = judge(claim, low=one.low, high=one.high)
        limits = f"{_limits(one.low, one.high)} ({claim.level} %)"
        value = "no value" if math.isnan(one.estimate) else f"{one.estimate:.3f}{limits}"
        lines.append(f"* {number}, {claim.claim}: {value}, **{verdict}**; {one.n}")
    return [*lines, ""]


def draw(decisions: pd.DataFrame, path: Path) -> None:
    """A panel an endpoint, a row a store; hollow where there is no interval.

    Args:
        decisions: lines of decision.csv.
        path: of the PNG.
    """
    names = list(dict.fromkeys(decisions["store"]))
    with styled("plain"):
        figure = new_figure(8.0, 1.0 + 0.3 * len(names))
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (endpoint, (label, null)) in zip(panels, PANELS.items(), strict=True):
            own = decisions[decisions["endpoint"] == endpoint].set_index("store")
            _panel(axes, own.loc[names], null=null)
            axes.set_xlabel(label)
        panels[0].set_yticks(range(len(names)), [name.split(" (")[0] for name in names])
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        figure.savefig(path)


def _panel(axes: Axes, own: pd.DataFrame, *, null: float) -> None:
    axes.axvline(null, color=NEUTRAL, linewidth=0.6, linestyle=":")
    for place, row in enumerate(own.to_dict("records")):
        if math.isnan(row["estimate"]):
            across = axes.get_yaxis_transform()
            look = {"ha": "right", "va": "center", "fontsize": "x-small", "color": NEUTRAL}
            axes.text(0.98, place, "not estimable", transform=across, **look)
            continue
        sure = not math.isnan(row["low"])
        if sure:
            axes.plot([row["low"], row["high"]], [place, place], color=BLUE, linewidth=1.0)
        fill = BLUE if sure else "white"
        axes.plot([row["estimate"]], [place], "o", color=BLUE, markersize=3.5, markerfacecolor=fill)
