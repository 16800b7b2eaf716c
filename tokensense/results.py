"""What `analyze` found, as a person and a program want it.

Reads  Datasets of `stats.describe`, by name.
Gives  Results: a dict of them that shows its table in a terminal and in a notebook.
Sign   difference = verdict - placebo.
"""

import xarray as xr

from tokensense.errors import StoreError
from tokensense.reprs import table_html
from tokensense.stats.rows import DECISION, Row, notes, table

SHOWN = (DECISION, "character", "triple", "floor", "localization")
HEADS = ("statistic", "verdict, or alone", "placebo", "difference", "unit", "n")


class Results(dict[str, xr.Dataset]):
    """Analyses by name, each a Dataset."""

    def table(self) -> list[Row]:
        """All results as lines of text: estimate [95 % interval], unit and n.

        Raises:
            StoreError: nothing was analyzed.
        """
        return table(self._whole())

    def notes(self) -> list[str]:
        """What has to stand beside the numbers, in sentences.

        Raises:
            StoreError: nothing was analyzed.
        """
        return notes(self._whole())

    def _whole(self) -> "Results":
        if "triple" not in self:
            raise StoreError(
                f"this needs an analysis of the store; there are {sorted(self)}. Run analyze first."
            )
        return self

    def __repr__(self) -> str:
        rows = table(self, sections=(DECISION,)) if DECISION in self else []
        lines = [f"  {row.name}: {row.value} {row.n}" for row in rows]
        return "\n".join([f"Results: {', '.join(self)}", *lines])

    def _repr_html_(self) -> str:
        if "triple" not in self:
            sizes = [(name, str(dict(one.sizes))) for name, one in self.items()]
            return table_html("Results", sizes)
        rows = [
            (f"{row.section}: {row.name.replace('_', ' ')}", *row[2:])
            for row in table(self, sections=SHOWN)
        ]
        others = sorted(set(self) - set(SHOWN))
        more = [f"More, each a Dataset: {', '.join(others)}."] if others else []
        title = "Results, 95 % intervals over problem texts"
        return table_html(title, rows, heads=HEADS, notes=[*notes(self), *more])
