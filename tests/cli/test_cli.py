"""Commands, as a person types them: exit codes, JSON, messages."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, PROBLEMS, words_policy, write_traces
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


def test_the_path_from_a_file_to_results(folder):
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
    other = run("probe", store, "--model", model, *sizes, "--dtype", "bfloat16")
    assert other.exit_code == 2
    assert "need the policy and the settings that the base was scored with" in other.output
    again = run("probe", store, "--model", model, *sizes, "--json")
    assert json.loads(again.stdout)["scored_tokens"] == 0
    found = json.loads(run("analyze", store, "--resamples", 200, "--json").stdout)
    assert "same_direction" in {row["name"] for row in found["rows"]}
    begins = {note.partition(":")[0] for note in found["notes"]}
    assert {"off-policy", "decision", "informative", "numerical floor"} <= begins
    info = run("info", store)
    assert info.exit_code == 0
    assert "OFF-POLICY" in info.stdout
    assert max(map(len, info.stdout.splitlines())) <= 100
    for more in (["--check"], ["--repair", "--json"]):
        whole = run("info", store, *more)
        assert whole.exit_code == 0, whole.stdout
    assert json.loads(whole.stdout) == {"done": [], "findings": []}
    files = run("export", store, "probes/opposed", "--out", folder / "out", "--json")
    assert all(Path(name).is_file() for name in json.loads(files.stdout)["files"])
    damaged = shutil.copytree(store, folder / "damaged.zarr")
    chunks = (damaged / "probes" / "opposed" / "logp" / "c").rglob("*")
    next(chunk for chunk in chunks if chunk.is_file()).unlink()
    found = run("info", damaged, "--check")
    assert found.exit_code == 1
    assert "/probes/opposed: `logp`" in found.stdout


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
    assert "name=value" in found.stderr


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch, tmp_path):
    def broken(self):
        raise RuntimeError("ours")

    monkeypatch.setattr("tokensense.study.Study.info", broken)
    found = run("info", tmp_path)
    assert isinstance(found.exception, RuntimeError)


def test_formats_with_fixed_fields_come_in_without_a_field_map(folder, tmp_path):
    row = {
        "id": "g-0", "generator": "m", "problem": "1 + 1?", "steps": ["It is 2.", "So 2."],
        "label": -1, "final_answer_correct": True,
    }  # fmt: skip
    (tmp_path / "pb.jsonl").write_text(json.dumps(row), encoding="utf-8")
    came = run("import", tmp_path / "p.zarr", tmp_path / "pb.jsonl", "--model", folder / "policy",
               "--format", "processbench", "--json")  # fmt: skip
    assert came.exit_code == 0, came.output
    assert json.loads(came.stdout)["labels"] == {"no_error": 1}


def test_own_conditions_alone_are_a_probe_with_a_name_that_goes_on_under_another(folder, tmp_path):
    rows = [{"question": "1 + 1?", "text": "2", "reward": r, "name": str(r)} for r in (1, -1)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    store, model = tmp_path / "o.zarr", ("--model", folder / "policy")
    came = run("import", store, tmp_path / "t.jsonl", *model, "--format", "jsonl", "--json")
    rewards = {"right": 1, "wrong": 0, "undecided": 0, "neither_1_nor_0": 1}
    assert json.loads(came.stdout)["rewards"] == rewards
    own = tmp_path / "own.yaml"
    own.write_text('- name: told\n  text: "It is {answer}."\n', encoding="utf-8")
    first = run("probe", store, *model, "--conditions", own, "--json")
    assert first.exit_code == 0, first.output  # no answer is known: nothing is comparable
    assert "there is none" in json.loads(first.stdout)["numerical_floor"]["not_estimable"]
    own.write_text('- name: plain\n  text: "Hello."\n', encoding="utf-8")
    refused = run("probe", store, *model, "--conditions", own)
    assert refused.exit_code == 2
    assert "new: plain; missing: told" in refused.stderr
    shipped = run("probe", store, *model, "--conditions", own, "--name", "placebo")
    assert shipped.exit_code == 2
    second = run("probe", store, *model, "--conditions", own, "--name", "second", "--json")
    assert json.loads(second.stdout)["numerical_floor"]["condition"] == "plain"
    assert set(json.loads(run("info", store, "--json").stdout)["probes"]) == {
        "base", "user", "second"
    }  # fmt: skip


def test_a_planted_task_is_sampled_by_number_and_progress_goes_to_standard_error(tmp_path):
    policy = words_policy("arithmetic")
    policy.model.save_pretrained(tmp_path / "policy")
    policy.tokenizer.save_pretrained(tmp_path / "policy")
    sizes = ("--problems", 3, "--group", 2, "--max-new-tokens", 5)
    came = run("generate", tmp_path / "s.zarr", "--model", tmp_path / "policy",
               "--task", "arithmetic", *sizes, "--json")  # fmt: skip
    assert came.exit_code == 0, came.output
    assert json.loads(came.stdout)["rollouts"] == 6
    assert "6/6" in came.stderr


def test_formats_are_listed_without_a_store():
    found = run("import", "--formats")
    assert found.exit_code == 0
    assert "untested against real output" in found.stdout
    assert "cannot tell" in found.stdout
