"""Moments and intervals of the study, and a run of it."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from studies import optimal_weights as study


def test_moments_are_those_of_plain_statistics():
    gradients = np.random.default_rng(0).normal(0.5, 1.0, (30, 4))
    found = study.moments(gradients @ gradients.T, np.ones(30, bool))
    trace = np.trace(np.cov(gradients, rowvar=False))
    assert found["trace"] == pytest.approx(trace)
    # ||mean||^2 holds trace / n of noise; without it:
    mean = gradients.mean(axis=0)
    assert found["mean_squared"] == pytest.approx(mean @ mean - trace / 30)


def test_a_scaled_rule_has_scaled_moments_and_the_same_ratio_of_signal_to_noise():
    plain = np.random.default_rng(1).normal(1.0, 1.0, (20, 1, 5))
    one, other = study.jackknifed(np.concatenate([plain, plain / 2], axis=1))
    assert one["trace_ratio"] == 1
    assert other["trace_ratio"] == pytest.approx(1 / 4)
    assert other["trace_ratio_low"] == pytest.approx(1 / 4)
    assert other["snr_ratio_high"] == pytest.approx(1)
    # The jackknife of a mean of independent values is its textbook standard error.
    assert one["trace_low"] < one["trace"] < one["trace_high"]


@pytest.mark.slow
def test_the_study_runs_and_goes_on_from_its_batches(tmp_path, capsys):
    config = replace(study.TINY, batches=4, taught=2, steps=2)
    study.main(config, out=tmp_path, work=tmp_path)
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rule"] for row in rows] == list(study.RULES)
    assert float(rows[0]["difference"]) == 0
    capsys.readouterr()
    study.main(config, out=tmp_path, work=tmp_path)
    assert "batch" not in capsys.readouterr().out.split("cosine")[0]
