"""15 x 23 as a page: what telling right from wrong siblings blames, token by token.

    python -m studies.sibling_story --out data/sibling_route

Reads  `story.csv` and `shares.csv` of `studies.sibling_route`.
Gives  `story.png`: log p of each token with the right sibling shown minus that with the wrong one.
       `story.md`: the same in words and numbers, and the shares over all problems.
Sign   positive: the right sibling makes the token likelier.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from tokensense.figures.matrix import diverging
from tokensense.figures.style import SMALLEST_TYPE, new_figure, styled

Row = Mapping[str, str]
PAIRS = {
    "copy": "its twin of the other outcome",
    "same": "same route: C says 35",
    "other": "other route: D says 105",
    "foreign": "27 × 14, same route",
}
SIDES = {"right": "right: 15 × 3 = 45", "wrong": "wrong: 15 × 3 = 35"}
LIMIT = 3.0  # nats: deepest color
WRITTEN = 0.5  # nats: smaller ones are colored only
TOP = 3


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """Numbers of one column."""
    return np.array([float(row[name]) for row in rows])


def draw(axes: Axes, rows: Sequence[Row]) -> None:
    """Contrasts of one response, a row a pair of siblings, a column a token."""
    colors, norm = diverging(), Normalize(-LIMIT, LIMIT, clip=True)
    for line, name in enumerate(PAIRS):
        for place, value in enumerate(column(rows, f"contrast_{name}")):
            cell = Rectangle((place - 0.5, line - 0.5), 1, 1, facecolor=colors(norm(value)),
                             edgecolor="#e6e6e6", linewidth=0.4)  # fmt: skip
            axes.add_patch(cell)
            if abs(value) >= WRITTEN:
                text = f"{value:.1f}".replace("-", "−")
                axes.text(place, line, text, ha="center", va="center", size=SMALLEST_TYPE)
    (digit,) = np.flatnonzero(column(rows, "first_differing"))
    frame = Rectangle((digit - 0.5, -0.5), 1, len(PAIRS), fill=False, edgecolor="black")
    axes.add_patch(frame)
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_ylim(len(PAIRS) - 0.5, -0.5)
    axes.set_xticks(range(len(rows)), [row["token"].replace(" ", "␣") for row in rows], rotation=90)
    axes.set_yticks(range(len(PAIRS)), list(PAIRS.values()))
    axes.tick_params(length=0)


def place_of_digit(rows: Sequence[Row], rule: str) -> tuple[int, float]:
    """Rank of the first differing digit by weight, from 1, and its share of the response's."""
    weights = column(rows, rule)
    (digit,) = np.flatnonzero(column(rows, "first_differing"))
    return int((weights > weights[digit]).sum()) + 1, float(weights[digit] / weights.sum())


def heaviest(rows: Sequence[Row], rule: str) -> str:
    """The tokens of largest weight with their words before them, in order of weight."""
    order = np.argsort(-column(rows, rule), kind="stable")[:TOP]
    tokens = [row["token"] for row in rows]
    return ", ".join(
        f"“{''.join(tokens[max(place - 2, 0) : place])}**{tokens[place].strip() or '␣'}**”"
        for place in order
    )


def story_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The table of the one problem."""
    yield "| response | siblings shown | rank of the digit | share of weight | heaviest tokens |"
    yield "|---|---|---|---|---|"
    for side, shown in SIDES.items():
        own = [row for row in rows if row["response"] == side]
        for name, words in PAIRS.items():
            rank, share = place_of_digit(own, f"{name}/sibling")
            top = heaviest(own, f"{name}/sibling")
            yield f"| {shown} | {words} | {rank} of {len(own)} | {share:.0%} | {top} |"


def share_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Shares of all policies, wrong responses."""
    yield "| policy | shown | digit in the top 3 | 95 % interval | problems |"
    yield "|---|---|---|---|---|"
    for row in rows:
        if row["response"] == "wrong" and row["rule"] == "sibling":
            yield (
                f"| {row['policy']} | {row['siblings']} | {float(row['share']):.2f} | "
                f"[{float(row['low']):.2f}, {float(row['high']):.2f}] | {row['n']} |"
            )


def page(story: Sequence[Row], shares: Sequence[Row]) -> str:
    """The page."""
    return "\n".join(
        [
            "# 15 × 23 with two wrong siblings",
            "",
            "The right response says `15 × 20 = 300. 15 × 3 = 45. 300 + 45 = 345.` The wrong one",
            "drops the carry: `15 × 3 = 35`, and so 335. They first differ in one digit. Popular",
            "accounts say that a rule which compares the policy under a right and under a wrong",
            "sibling finds that digit. C is a wrong sibling on the same route (`15 × 3 = 35`), D",
            "one on another route (`23 × 10 = 230, 23 × 5 = 105`). Each is shown beside a right",
            "sibling in the same words.",
            "",
            "C finds the digit, D does not: what a sibling makes likelier is its own text. A rule",
            "that reads siblings tells where the response leaves the sibling's route, not where it",
            "is wrong.",
            "",
            "![contrast of every token](story.png)",
            "",
            *story_lines(story),
            "",
            "In the last column bold is the token, before it what it follows; `␣` is a blank.",
            "",
            "Over 100 problems, wrong response, rule `sibling`:",
            "",
            *share_lines(shares),
            "",
            "`copy`: the right twin of the response and a wrong sibling in other words; `same`,",
            "`other`: as C and D; `foreign`: siblings of another problem. Chance is 3 of the",
            "tokens: .06 for SmolLM2's 50 tokens, .13 for the tiny policies' 24. Made by",
            "`python -m studies.sibling_story --out data/sibling_route`.",
            "",
        ]
    )


def main(out: Path) -> None:
    """Figure and page."""
    story, shares = read(out / "story.csv"), read(out / "shares.csv")
    with styled("plain"):
        figure = new_figure(11.0, 3.3)
        for axes, (side, title) in zip(figure.subplots(2, 1), SIDES.items(), strict=True):
            draw(axes, [row for row in story if row["response"] == side])
            axes.set_title(f"response is {title}", fontsize="medium", loc="left")
        figure.supxlabel(
            "log p with the right sibling shown minus log p with the wrong one, nats "
            "(blue: right sibling helps, orange: wrong one does; frame: first differing digit)",
            fontsize="small",
        )
        figure.savefig(out / "story.png")
    (out / "story.md").write_text(page(story, shares), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sibling_route"))
    given = parser.parse_args()
    if not (given.out / "story.csv").exists():
        sys.exit(
            f"sibling_story needs story.csv and shares.csv; {given.out} has none. Run "
            "studies.sibling_route with --model first, or name its --out."
        )
    main(given.out)
