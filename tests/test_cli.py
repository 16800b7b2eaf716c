"""Commands, as a person types them: exit codes, JSON, messages."""

import json

import pytest
from typer.testing import CliRunner

from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, PROBLEMS, write_traces
from tokensense.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    policy = tiny_policy()
    policy.model.save_pretrained(folder / "policy")
    policy.tokenizer.save_pretrained(folder / "policy")
    write_traces(folder / "traces.jsonl")
    return folder


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def fields():
    return [word for ours, theirs in FIELDS.items() for word in ("--field", f"{ours}={theirs}")]


def test_the_path_from_a_file_to_figures(folder):
    store, model = folder / "s.zarr", folder / "policy"
    came = run("import", store, folder / "traces.jsonl", "--model", model, "--format", "jsonl",
               *fields(), "--json")  # fmt: skip
    assert came.exit_code == 0, came.output
    assert json.loads(came.stdout)["problems"] == PROBLEMS
    sizes = ("--frames", 1, "--families", 3)
    cost = run("probe", store, "--model", model, *sizes, "--dry-run", "--json")
    assert json.loads(cost.stdout)["probes"]["placebo"]["conditions"] == 6
    assert not (store / "probes" / "base").exists()
    done = run("probe", store, "--model", model, *sizes, "--json")
    assert json.loads(done.stdout)["scored_tokens"] == json.loads(cost.stdout)["scored_tokens"]
    again = run("probe", store, "--model", model, *sizes, "--json")
    assert json.loads(again.stdout)["scored_tokens"] == 0
    rows = json.loads(run("analyze", store, "--resamples", 200, "--json").stdout)
    assert "same_direction" in {row["name"] for row in rows}
    shown = run("analyze", store, "--resamples", 200)
    assert "same_direction" in shown.stdout
    assert run("figures", store, "--out", folder / "figures").exit_code == 0
    assert list((folder / "figures").glob("*.pdf"))
    info = run("info", store)
    assert info.exit_code == 0
    assert "off_policy" in info.stdout


def test_our_errors_are_one_message_and_exit_code_2(folder, tmp_path):
    gone = run("info", tmp_path / "none.zarr")
    assert gone.exit_code == 2
    assert gone.stderr.startswith("tokensense: ")
    assert "Traceback" not in gone.output
    wrong = run("import", tmp_path / "x.zarr", folder / "traces.jsonl", "--model",
                folder / "policy", "--format", "nonsense")  # fmt: skip
    assert wrong.exit_code == 2
    assert "processbench" in wrong.stderr


def test_a_field_without_an_equals_sign_is_refused(folder, tmp_path):
    found = run("import", tmp_path / "x.zarr", folder / "traces.jsonl", "--model",
                folder / "policy", "--format", "jsonl", "--field", "prompt")  # fmt: skip
    assert found.exit_code == 2
    assert "ours=theirs" in found.stderr


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch, tmp_path):
    def broken(self):
        raise RuntimeError("ours")

    monkeypatch.setattr("tokensense.study.Study.info", broken)
    found = run("info", tmp_path)
    assert isinstance(found.exception, RuntimeError)
