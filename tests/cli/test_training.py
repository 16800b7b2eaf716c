"""The command `train`, as a person types it."""

import json

import pytest
from typer.testing import CliRunner

from tokensense.cli import app

SIZES = ("--size", "lookups=3", "--size", "filler_mean=0.0", "--held-out", 4)
SMALL = {"problems": 2, "max_new_tokens": 32, "evaluate_every": 2, "checkpoint_every": 1}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(SMALL))
    return path


def test_a_run_goes_on_where_it_stopped(tmp_path, settings):
    call = ("train", tmp_path / "run", "--model", "tiny:tables", *SIZES, "--config", settings)
    first = run(*call, "--steps", 1, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["steps"] == 1
    second = run(*call, "--steps", 2, "--json")
    told = json.loads(second.stdout)
    assert (told["steps"], told["stopped"], told["findings"]) == (2, "", [])
    assert list(told["accuracy"]) == ["0", "1", "2"]
    other = run(*call, "--steps", 2, "--rule", "cscr")
    assert other.exit_code == 2
    assert "these differ: rule: uniform -> cscr" in other.output


def test_a_collapsed_run_leaves_with_code_1(tmp_path, settings):
    settings.write_text(json.dumps({**SMALL, "max_new_tokens": 4}))
    found = run("train", tmp_path / "run", "--model", "tiny:tables", *SIZES, "--config", settings,
                "--steps", 3, "--stop-on-collapse")  # fmt: skip
    assert found.exit_code == 1
    assert "100% of the responses reach the limit" in found.stdout


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("[1]", (), "holds list"),
        ("{", (), "cannot be read"),
        ('{"rules": "x"}', (), "TrainConfig needs fields"),
        ("{}", ("--size", "hops=3"), "tables needs sizes that it has; {'hops': 3} came"),
        ("{}", ("--size", "lookups"), "needs name=number, as lookups=3; it is 'lookups'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, settings, text, options, message):
    settings.write_text(text)
    found = run("train", tmp_path / "run", "--model", "tiny:tables", "--config", settings, *options)
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())
