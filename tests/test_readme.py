"""What the README shows is run: its Python example and its commands, on a tiny policy."""

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.probes.tiny import tiny_policy
from tests.test_study import write_traces
from tokensense.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    _, shell = [block for block in blocks("bash") if block.startswith("tokensense import")]
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_a_clone_to_a_figure_of_a_trl_run_takes_ten_minutes(tmp_path):
    """Both blocks as printed: a new environment and the demo; then the six lines on TRL's files."""
    begun = time.monotonic()
    clone = tmp_path / "tokensense"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    (install,) = [block for block in blocks("bash") if "tokensense demo" in block]
    six, _ = [block for block in blocks("bash") if block.startswith("tokensense import")]
    assert len(six.strip().splitlines()) == 6
    shutil.copytree(ROOT / "tests" / "importing" / "trl", clone / "trl_run")
    shutil.copytree(ROOT / "data" / "tiny" / "mixed", clone / "policy")
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for block in (install, six):
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            check=True,
            cwd=clone,
            env={**os.environ, "PATH": path, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"},
        )
    assert list((clone / "runs" / "trl_figures").glob("*.pdf"))
    assert (clone / "runs" / "trl_tokens.html").is_file()
    seconds = time.monotonic() - begun
    print(f"from a clone to a figure: {seconds:.0f} s")  # noqa: T201
    assert seconds < 600
