"""Order, gaps and dots of the matrix of correlations."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure

from studies import all_rules_figure as study

NAMES = ["optw", "gcpo", "gtpo", "uniform", "surprisal", "entropy", "position"]


@pytest.fixture
def table(tmp_path):
    """optw and gtpo are twins, gcpo is against both; uniform never varies."""
    values = np.eye(7)
    values[0, 2] = values[2, 0] = 0.97
    values[0, 1] = values[1, 0] = -0.5
    values[1, 2] = values[2, 1] = np.nan  # no response in common
    values[3] = values[:, 3] = np.nan
    values[0, 4:], values[2, 4:] = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    path = tmp_path / "correlations_some.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["score", *NAMES])
        for name, row in zip(NAMES, values, strict=True):
            writer.writerow([name, *("" if np.isnan(v) else v for v in row)])
    return path


def test_alike_rules_are_neighbours_and_numbers_follow_them(table):
    found = study.read(table)
    assert found.names in (["gcpo", "optw", "gtpo"], ["gcpo", "gtpo", "optw"],
                           ["optw", "gtpo", "gcpo"], ["gtpo", "optw", "gcpo"])  # fmt: skip
    one, other = found.names.index("optw"), found.names.index("gtpo")
    assert found.square[one, other] == 0.97
    assert found.beside[one].tolist() == [0.1, 0.2, 0.3]
    assert found.beside[other].tolist() == [0.4, 0.5, 0.6]
    assert "uniform" in found.still
    assert "vine" in found.still  # is not in the table at all
    assert not {"optw", "gtpo", "gcpo"} & set(found.still)


def test_order_does_not_depend_on_that_of_the_table():
    rng = np.random.default_rng(0)
    blocks = np.kron(np.eye(3), np.full((4, 4), 0.9)) + 0.1 * np.eye(12)
    shuffle = rng.permutation(12)
    order = shuffle[study.clustered(blocks[np.ix_(shuffle, shuffle)])]
    assert [len(set(part // 4)) for part in order.reshape(3, 4)] == [1, 1, 1]


def test_twins_carry_a_dot_and_nothing_else_does(table):
    found = study.read(table)
    axes = Figure().subplots()
    study.draw(axes, found.square, found.names, found.names)
    one, other = found.names.index("optw"), found.names.index("gtpo")
    dots = {tuple(line.get_xydata()[0].astype(int)) for line in axes.lines}
    assert dots == {(one, other), (other, one)}
    assert axes.collections[0].get_array().mask.sum() == 2


def test_a_file_a_table(table):
    (path,) = study.main(table.parent)
    assert path.read_bytes().startswith(b"\x89PNG")
