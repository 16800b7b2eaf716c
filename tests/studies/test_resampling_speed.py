"""The study runs, and its two ways of making an interval agree (it fails where they do not)."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from studies import resampling_speed as study
from tokensense.stats.resampling import Estimates


def test_a_tiny_run_prints_and_keeps_the_table(tmp_path, capsys):
    config = replace(study.TINY, rollouts=120, resamples=1000, statistics=2)
    lines = study.main(config, out=tmp_path)
    with (tmp_path / "resampling_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows] == [line.what for line in lines]
    assert [row["limit"] for row in rows] == ["< 10", "< 10", "< 30", "", ""]
    assert float(rows[4]["seconds"]) == pytest.approx(20 * float(rows[3]["seconds"]), rel=1e-2)
    assert rows[4]["what"] in capsys.readouterr().out


def test_disagreement_fails():
    def one(estimate, error):
        value = np.array([estimate])
        none = np.zeros(1, dtype=np.int64)
        return Estimates(value, value, value, np.array([error]), none.astype(np.int8), none, none)

    study._agree(one(1.0, 0.1), one(1.0, 0.11))
    with pytest.raises(AssertionError):
        study._agree(one(1.0, 0.1), one(1.0, 0.13))
    with pytest.raises(AssertionError):
        study._agree(one(1.0, 0.1), one(1.001, 0.1))
