"""What the two figures of the learning-value study draw."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure

from studies import learning_figure as study

FIELDS = ("regime", "base", "steps", "rule", "kind", "batches", "cosine")


def line(**values):
    ends = {f"{name}{end}": 0.0 for name in ("difference", "norm") for end in ("_low", "_high")}
    return dict.fromkeys(FIELDS, "") | {k: str(v) for k, v in (ends | values).items()}


@pytest.fixture
def rows():
    return [
        line(regime="A", base=base, steps=0, rule=rule, difference=place + lift, cosine=0.1)
        for lift, base in ((0.0, "tiny:tables"), (0.25, "runs/bases/t11/tables"))
        for place, rule in enumerate(("uniform", "delta", "oracle_value"))
    ]


def dots(axes):
    """(x, y) of what is drawn as one point."""
    found = [curve.get_xydata() for curve in axes.lines]
    return sorted(tuple(points[0]) for points in found if len(points) == 1)


def test_a_mark_a_base_at_its_difference(rows):
    axes = Figure().subplots()
    assert study.draw_rules(axes, rows, ["oracle_value", "delta"]) == 4
    np.testing.assert_allclose(
        dots(axes), [(1.0, 0.89), (1.25, 1.11), (2.0, -0.11), (2.25, 0.11)], atol=1e-12
    )
    assert [text.get_text() for text in axes.get_yticklabels()] == ["oracle_value", "delta"]


def test_shares_of_the_kinds_that_are_asked_for():
    axes = Figure().subplots()
    rows = [
        line(base="tiny:tables", rule="delta", kind=kind, norm=norm)
        for kind, norm in (("discourse", 0.75), ("first_wrong", 0.25), ("format", 0.5))
    ]
    assert study.draw_shares(axes, rows, ("uniform", "delta")) == 2
    np.testing.assert_allclose(dots(axes), [(0.25, 1.0), (0.75, 1.0)], atol=1e-12)


def test_files_are_made_of_tables(rows, tmp_path):
    tables = {"table.csv": rows, "shares.csv": [row | {"kind": "format"} for row in rows]}
    for name, lines in tables.items():
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows({**row, "batches": "8"} for row in lines)
    study.main(tmp_path)
    for name in ("rules.png", "shares.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
