"""What the README shows is run: its Python example and its commands, on a tiny policy."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.probes.tiny import tiny_policy
from tests.test_study import write_traces
from tokensense.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path, monkeypatch):
    policy = tiny_policy()
    policy.model.save_pretrained(tmp_path / "policy")
    policy.tokenizer.save_pretrained(tmp_path / "policy")
    write_traces(tmp_path / "traces.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs(place, capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    assert "difference" in capsys.readouterr().out
    assert list((place / "runs" / "figures").glob("*.pdf"))


def test_the_commands_run(place):
    (shell,) = [block for block in blocks("bash") if block.startswith("tokensense")]
    for line in shell.strip().splitlines():
        program, *words = shlex.split(line)
        assert program == "tokensense"
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, (line, found.output)
        if words[0] == "analyze":
            assert "same_direction" in found.stdout
    assert list((place / "runs" / "figures").glob("*.pdf"))
    assert {path.name for path in (place / "runs" / "report").glob("report.*")} == {
        *("report.html", "report.md"),
    }
