"""The calibration as a page of plain words and one figure.

    python -m studies.calibration_page --out data/calibration

Reads  `calibration.csv` of `studies.calibration`.
Gives  `page.md`; `calibration.png`: rejections under no effect and planted ones, cell by cell.
Sign   none: shares of data sets.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from studies.calibration_table import NEAR, PRIMARIES, verdict
from studies.null_data import Cell
from tokensense.figures.style import NEUTRAL, new_figure, styled

Row = Mapping[str, str]
NAMES = {
    "e1_rank": "E1: verdict first of 20",
    "e2_auroc": "E2: balanced AUROC is not .5",
    "triple": "triple: size of contrast is not the placebo's",
}
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
FIRST = """# Do the primary endpoints keep their level, and what can they see?

Made-up data sets (`studies/null_data.py`) go through the very functions that `analyze` calls
(`python -m studies.calibration`). The verdict is one irrelevant word more, so that every rejection
is an error: 5 % are announced. 24 cells are judged: 6, 20 or 100 problem texts; 1, 4 or 8 rollouts;
correlation within problems 0, .1 or .5; heavy tails; drift with the position. A cell passes when
the 99 % Clopper-Pearson interval of its share of errors meets [.04, .06].
"""
LAST = """
What would change the verdict: a judged cell of 20 or 100 texts whose 99 % interval lies above .06,
or two primaries that fail at 6. It holds for data made this way: rollouts of 2 to 6 tokens, equal
numbers of rollouts a problem, none left out. Below 8 problem texts no interval is given, so that at
6 only the rank (E1) is a test.

Power: the verdict's word moves tokens more, by a factor 1 + effect, and lifts the contrast by
effect / 4 on right responses and lowers it on wrong ones (in standard deviations of a contrast).
"""


def cell_of(row: Row) -> Cell:
    """The cell of a line."""
    flags = [row[name] == "True" for name in ("heavy", "drift", "writers")]
    return Cell(int(row["clusters"]), int(row["rollouts"]), float(row["icc"]), *flags)


def of(rows: Sequence[Row], test: str, effect: float) -> list[Row]:
    """Judged cells of one test under one effect in which it decides."""
    return [
        row
        for row in rows
        if row["judged"] == "1"
        and row["test"] == test
        and float(row["effect"]) == effect
        and int(row["n_decided"])
    ]


def page(rows: Sequence[Row]) -> str:
    """Level, coverage and power, by number of problem texts."""
    effects = sorted({float(row["effect"]) for row in rows})
    lines = [FIRST, f"**{verdict([dict(row) for row in rows if row['judged'] == '1'])}**", ""]
    lines += [
        "| test | texts | cells | data sets a cell | errors, smallest to largest | covered |",
        "|---|---|---|---|---|---|",
    ]
    for test in PRIMARIES:
        for texts in sorted({int(row["clusters"]) for row in of(rows, test, 0.0)}):
            own = [row for row in of(rows, test, 0.0) if int(row["clusters"]) == texts]
            lines.append(
                f"| {NAMES[test]} | {texts} | {len(own)} | {_range(own, 'n', '.0f')} | "
                f"{_range(own, 'rejected')} | {_range(own, 'coverage')} |"
            )
    lines += [LAST]
    if len(effects) > 1:
        lines += [
            "| test | texts | effect | cells | data sets a cell | rejected |",
            "|" + "---|" * 6,
        ]
    for test in PRIMARIES:
        for texts in (6, 20, 100):
            for effect in effects[1:]:
                own = [row for row in of(rows, test, effect) if int(row["clusters"]) == texts]
                if own:
                    lines.append(
                        f"| {NAMES[test]} | {texts} | {effect:g} | {len(own)} | "
                        f"{_range(own, 'n', '.0f')} | {_range(own, 'rejected')} |"
                    )
    return "\n".join(lines) + "\n"


def _range(rows: Sequence[Row], name: str, form: str = ".3f") -> str:
    """Smallest and largest of a column; one number where they are one."""
    ends = [float(row[name]) for row in rows if row[name] != "nan"]
    if not ends:
        return "-"
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(ends), max(ends))))


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel a test, a row a cell, a color an effect.

    Args:
        rows: of calibration.csv.
        path: of the PNG.
    """
    cells = list(dict.fromkeys(cell_of(row) for row in rows if row["judged"] == "1"))
    effects = sorted({float(row["effect"]) for row in rows})
    with styled("plain"):
        figure = new_figure(8.0, 1.0 + 0.2 * len(cells))
        panels = figure.subplots(1, len(PRIMARIES), sharey=True)
        for axes, test in zip(panels, PRIMARIES, strict=True):
            axes.axvspan(*NEAR, color=NEUTRAL, alpha=0.25, linewidth=0)
            for effect, color in zip(effects, COLORS, strict=False):
                _marks(axes, of(rows, test, effect), cells, color=color)
            axes.set_xlim(-0.02, 1.02)
            axes.set_xlabel(NAMES[test].replace(": ", ":\n"))
        panels[0].set_yticks(range(len(cells)), [cell.name for cell in cells])
        panels[0].set_ylim(len(cells) - 0.5, -0.5)
        for effect, color in zip(effects, COLORS, strict=False):
            label = f"effect {effect:g}" if effect else "no effect: 5 % announced"
            panels[0].plot([], [], "o", color=color, label=label, markersize=3.5)
        figure.legend(loc="outside upper center", ncols=len(effects), handletextpad=0.2)
        figure.savefig(path)


def _marks(axes: Axes, rows: Sequence[Row], cells: Sequence[Cell], *, color: str) -> None:
    for row in rows:
        place = cells.index(cell_of(row))
        axes.plot([float(row["low"]), float(row["high"])], [place, place], color=color, linewidth=1)
        axes.plot([float(row["rejected"])], [place], "o", color=color, markersize=2.8)


def main(out: Path) -> None:
    """Write both beside the table."""
    with (out / "calibration.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    text = page(rows)
    (out / "page.md").write_text(text, "utf-8")
    draw(rows, out / "calibration.png")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/calibration"))
    given = parser.parse_args()
    if not (given.out / "calibration.csv").exists():
        sys.exit(f"calibration_page needs {given.out}/calibration.csv. Run studies.calibration.")
    main(given.out)
