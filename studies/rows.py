"""Rows of a study as CSV."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def written(path: Path, rows: Sequence[Mapping[str, object]], *, add: bool = False) -> None:
    """Rows as CSV, behind what is there or in its place."""
    fresh = not (add and path.exists())
    with path.open("a" if add else "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
