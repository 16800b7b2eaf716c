import json

import numpy as np
import pytest
from scipy.stats import t as student

from tokensense.errors import StatisticsError
from tokensense.stats.runs import run_dataset, side_by_side


def records(*, every: int = 2, steps: int = 4, accuracy: float = 0.5):
    """What a trainer's sink gets: evaluations, steps, a finding; null stands for NaN."""
    found = [evaluation(0, accuracy)]
    for step in range(1, steps + 1):
        found.append({"kind": "step", "step": step, "reward": step / 10, "entropy": None,
                      "length": 20.0, "rollouts": 8})  # fmt: skip
        if step % every == 0:
            found.append(evaluation(step, accuracy + step / 100))
    found.append({"kind": "finding", "step": 2, "sign": "entropy", "collapse": False,
                  "message": "Entropy is low."})  # fmt: skip
    return found


def evaluation(step: int, accuracy: float):
    return {"kind": "evaluation", "step": step, "accuracy": accuracy, "accuracy_error": 0.05,
            "problems": 16, "length": 30.0}  # fmt: skip


def test_numbers_of_steps_and_evaluations_stand_apart():
    run = run_dataset(records(), attrs={"rule": "cscr"})
    assert run["step"].values.tolist() == [1, 2, 3, 4]
    assert run["evaluation"].values.tolist() == [0, 2, 4]
    assert run["length"].values.tolist() == [20.0] * 4
    assert run["held_out_length"].values.tolist() == [30.0] * 3
    np.testing.assert_allclose(run["held_out_accuracy"], [0.5, 0.52, 0.54])
    assert np.isnan(run["entropy"]).all()
    assert run["entropy"].attrs["units"] == "nats"
    assert json.loads(run.attrs["findings"])[0]["message"] == "Entropy is low."


def test_the_interval_of_accuracy_is_students_over_problems():
    run = run_dataset(records(), attrs={})
    reach = student.ppf(0.975, 15) * 0.05
    np.testing.assert_allclose(run["held_out_accuracy_high"] - run["held_out_accuracy"], reach)
    np.testing.assert_allclose(run["held_out_accuracy"] - run["held_out_accuracy_low"], reach)


def test_runs_of_other_lengths_stand_side_by_side_with_nan():
    attrs = {"task": "tables", "scored_by": "tiny"}
    short = run_dataset(records(steps=2), attrs={**attrs, "rule": "uniform", "seed": 0})
    long = run_dataset(records(), attrs={**attrs, "rule": "cscr", "seed": 1})
    both = side_by_side({"short": short, "long": long})
    assert both["rule"].values.tolist() == ["uniform", "cscr"]
    assert both["seed"].values.tolist() == ["0", "1"]
    assert (both.attrs["task"], both.attrs["scored_by"]) == ("tables", "tiny")
    np.testing.assert_array_equal(
        both["reward"], [[0.1, 0.2, np.nan, np.nan], [0.1, 0.2, 0.3, 0.4]]
    )


def test_a_run_without_records_is_none():
    with pytest.raises(StatisticsError, match="a step or an evaluation"):
        run_dataset([], attrs={})
