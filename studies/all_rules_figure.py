"""Which credit rules choose the same tokens: matrices of `studies.all_rules`, in clusters.

    python -m studies.all_rules_figure --out data/all_rules

Reads  `correlations_<part>.csv`.
Gives  `correlations_<part>.png`: rules by rules in the order of a clustering, rules by what is no
       rule beside it.
Sign   blue: both give more credit to the same tokens of a response; orange: to opposite ones.

Clusters: average linkage of 1 - correlation, leaves in the order in which neighbours are most
alike. A pair that has no response in common counts as uncorrelated there and is drawn grey; a rule
that never varies within a response, or was not run, has no row and is named below.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from studies.all_rules import PLAIN
from tokensense.credit import CATALOGUE
from tokensense.credit.report import TWINS, shown_name
from tokensense.figures.matrix import diverging
from tokensense.figures.style import new_figure, styled

CELL = 0.155  # inches
NOTHING = "#d0d0d0"


class Table(NamedTuple):
    """Correlations of the rules that vary, in the order of the clustering.

    square: rule by rule. beside: rule by PLAIN. still: rules without ranks, or not in the table.
    """

    names: list[str]
    square: np.ndarray
    beside: np.ndarray
    still: list[str]


def read(path: Path) -> Table:
    """A table as `all_rules` writes it, in order."""
    with path.open(encoding="utf-8") as file:
        rows = {row.pop("score"): row for row in csv.DictReader(file)}
    values = np.array([[float(v or "nan") for v in row.values()] for row in rows.values()])
    names = list(rows)
    rules = [i for i, name in enumerate(names) if name not in PLAIN]
    varies = [i for i in rules if np.isfinite(values[i, i])]
    order = [varies[i] for i in clustered(values[np.ix_(varies, varies)])]
    plain = [names.index(name) for name in PLAIN]
    shown = {names[i] for i in order}
    return Table(
        [names[i] for i in order],
        values[np.ix_(order, order)],
        values[np.ix_(order, plain)],
        [name for name in CATALOGUE if name not in shown],
    )


def clustered(matrix: np.ndarray) -> list[int]:
    """Order in which alike rows are neighbours.

    Example:
        >>> alike = np.array([[1.0, -0.9, 0.9], [-0.9, 1.0, -0.8], [0.9, -0.8, 1.0]])
        >>> clustered(alike) in ([0, 2, 1], [1, 2, 0])
        True
    """
    if len(matrix) < 3:
        return list(range(len(matrix)))
    apart = 1 - np.nan_to_num(matrix)
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(np.maximum(apart, 0), checks=False), "average", optimal_ordering=True)
    return [int(leaf) for leaf in leaves_list(tree)]


def draw(axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """One matrix; pairs above TWINS carry a dot."""
    colors = diverging().with_extremes(bad=NOTHING)
    axes.pcolormesh(
        np.arange(len(columns) + 1) - 0.5,
        np.arange(len(rows) + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colors,
        vmin=-1,
        vmax=1,
        edgecolors="white",
        linewidth=0.3,
    )
    twins = np.argwhere(np.nan_to_num(values) > TWINS)
    for row, column in twins:
        if rows[row] != columns[column]:
            axes.plot(column, row, "o", color="black", markersize=1.6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def drawn(table: Table, part: str) -> Figure:
    """The figure of one part."""
    names = [shown_name(name, CATALOGUE[name]).replace("_", " ") for name in table.names]
    wide = len(names) + len(PLAIN)
    figure = new_figure(CELL * wide + 2.6, CELL * len(names) + 2.2)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[len(names), len(PLAIN)])
    draw(left, table.square, names, names)
    draw(right, table.beside, names, PLAIN)
    bar = figure.colorbar(left.collections[0], ax=right, fraction=0.5, aspect=40)
    bar.set_label("Spearman correlation of credit along the advantage's sign, within responses")
    still = ", ".join(name.replace("_", " ") for name in table.still)
    figure.suptitle(
        f"{part}: dot: above {TWINS}; grey: no response in common, or one does not vary.\n"
        f"Without a row (not run, or all tokens of a response alike): {still or 'none'}.",
        fontsize="small",
        wrap=True,
    )
    return figure


def main(out: Path) -> list[Path]:
    """A figure a table; gives the files."""
    found = []
    for path in sorted(out.glob("correlations_*.csv")):
        part = path.stem.removeprefix("correlations_")
        with styled("plain"):
            figure = drawn(read(path), part)
            figure.savefig(path.with_suffix(".png"))
        found.append(path.with_suffix(".png"))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/all_rules"))
    given = parser.parse_args()
    if not main(given.out):
        sys.exit(
            f"all_rules_figure needs correlations_<part>.csv; {given.out} has none. Run "
            "studies.all_rules first, or name its --out."
        )
