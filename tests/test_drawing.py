"""Figures of a store: all that it has the data for, and what it says of the rest."""

import json

import numpy as np
import pytest

import tokensense as ts
from tests.probes.tiny import tiny_policy
from tests.stats.test_runs import records
from tests.test_study import FIELDS, write_traces
from tokensense.drawing import inputs_of
from tokensense.errors import FigureError, InputError
from tokensense.figures import sets


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Nine problems with two traces each, probed and weighed; no analysis, no centers."""
    folder = tmp_path_factory.mktemp("drawing")
    found, policy = ts.Study(folder / "s.zarr"), tiny_policy()
    traces = write_traces(folder / "traces.jsonl")
    found.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=9)
    found.probe(policy, ["opposed", "placebo"], frames=1, families=2, progress=False)
    ts.assign_credit(found, ["uniform", "cscr", "cscr_placebo"])
    return found


def run_folder(tmp_path, name="uniform"):
    """What the trainer leaves of a run."""
    folder = tmp_path / name / "step-000004"
    folder.mkdir(parents=True)
    state = {"name": "tiny:tables", "policy": "d1", "task": "tables", "records": records(),
             "config": {"rule": name, "seed": 0}}  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state), "utf-8")
    return folder.parent


def composed_only(monkeypatch):
    """Draw without writing: layout and files cost most of the time, and have tests of their own."""
    drawn = {}

    def draw(name, inputs, folder, *, style):
        sets.provenance_of(sets._needed(name, inputs))
        drawn[name] = sets.drawable(name, inputs)
        return {"set": name}

    monkeypatch.setattr("tokensense.drawing.draw", draw)
    return drawn


def test_all_draws_what_there_is_and_says_what_makes_the_rest(study, tmp_path, monkeypatch):
    drawn = composed_only(monkeypatch)
    manifest = study.figures(tmp_path, which="all")
    assert list(drawn) == ["credit"]
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest
    lost = manifest["not_drawn"]
    assert set(lost) == {"shifts", "localization", "centers", "training"}
    assert "run `tokensense analyze`" in lost["shifts"]
    assert "run `tokensense centers`" in lost["centers"]
    assert "run `tokensense train`, and name its folder with --run" in lost["training"]


def test_a_run_is_kept_in_the_store_and_drawn(study, tmp_path, monkeypatch):
    assert study.keep_run(run_folder(tmp_path)) == "uniform"
    found = inputs_of(study.archive(), "training")["training"]
    assert found["run"].values.tolist() == ["uniform"]
    assert found["rule"].values.tolist() == ["uniform"]
    np.testing.assert_allclose(found["held_out_accuracy"][0], [0.5, 0.52, 0.54])
    drawn = composed_only(monkeypatch)
    study.figures(tmp_path, which="training")
    assert list(drawn["training"]) == ["learning_curves", "training_health"]


def test_a_folder_without_a_run_is_refused(study, tmp_path):
    with pytest.raises(InputError, match=r"step-\*/state.json; .* has none"):
        study.keep_run(tmp_path)


def test_rules_of_two_advantages_are_not_drawn_together(study, tmp_path):
    ts.assign_credit(study, ["uniform"], advantage="pooled")
    with pytest.raises(FigureError, match="one advantage for all rules"):
        study.figures(tmp_path, which="credit")
    ts.assign_credit(study, ["uniform"])


def test_numbers_of_the_rules_come_from_the_store(study):
    found = inputs_of(study.archive(), "credit")
    rules = found["rules"]["estimate"].sel(statistic="rotation")
    assert float(rules.sel(rule="uniform")) == pytest.approx(0.0, abs=1e-4)
    assert float(rules.sel(rule="cscr")) > 0
    assert json.loads(found["rules"].attrs["provenance"])["packages"]
