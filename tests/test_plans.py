"""Settings of studies: their own defaults, files, `a.b=c`; unknown ones refused; runs resumed."""

import importlib
import inspect
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tokensense import plans
from tokensense.cli import app
from tokensense.errors import InputError, MissingExtraError
from tokensense.submission import submitted


@dataclass(frozen=True)
class Inner:
    frames: int = 3
    families: int = 9


@dataclass(frozen=True)
class Config:
    problems: int = 64
    seed: int = 0
    shares: tuple[float, ...] = (0.0, 1.0)
    scoring: Inner = field(default_factory=Inner)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A checkout with one study, `made`; gives what it is run with."""
    seen = []

    def main(config: Config, *, traces: Path, out: Path, loud: bool = False) -> None:
        seen.append((config, traces, out, loud))

    made = types.ModuleType("studies.made")
    made.Config, made.TINY, made.main = Config, Config(problems=2), main
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "__init__.py").write_text("")
    text = '"""Made up.\n\nMore."""\nclass Config: ...\ndef main(): ...\n'
    (tmp_path / "studies" / "made.py").write_text(text)
    (tmp_path / "studies" / "rows.py").write_text('"""No study."""\n')
    monkeypatch.setitem(sys.modules, "studies.made", made)
    monkeypatch.setattr(plans, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return seen


def run(*words):
    return CliRunner().invoke(app, ["study", "run", "made", *words])


def test_a_study_has_a_config_and_a_main(runs):
    assert plans.found() == {"made": "Made up."}
    assert "made" in CliRunner().invoke(app, ["study", "list"]).output


def test_without_a_checkout_it_is_said_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "ROOT", tmp_path)
    with pytest.raises(InputError, match=r"folder of the checkout, not of the package.*Clone"):
        plans.found()


def test_later_settings_win_and_all_reach_the_study(runs, tmp_path):
    Path("mine.yaml").write_text("problems: 10\nseed: 1\nshares: [0.5]\nscoring: {frames: 6}\n")
    found = run(
        *("--config", "mine.yaml", "--set", "problems=20", "--set", "traces=x.jsonl"),
        *("--set", "loud=true", "--seed", "7", "--set", "scoring.families=2"),
    )
    assert found.exit_code == 0, found.output
    config = Config(problems=20, seed=7, shares=(0.5,), scoring=Inner(6, 2))
    assert runs == [(config, Path("x.jsonl"), Path("runs/made"), True)]


def test_tiny_is_the_small_form_and_nested_settings_are_reached(runs):
    found = run("--tiny", "--set", "scoring.frames=1", "--set", "traces=x")
    assert found.exit_code == 0, found.output
    assert runs == [
        (Config(problems=2, scoring=Inner(1)), Path("x"), Path("runs/made_tiny"), False)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "problem=3"], r"'problem' came. Did you mean 'problems'?"),
        (["--set", "scoring.frame=3"], r"setting of made, scoring: families, frames are known"),
        (["--set", "problems=many"], r"`problems` is needed"),
        (["--set", "problems"], r"needs the form a.b=c"),
        (["--set", "problems=[1"], r"needs YAML"),
        ([], r"`traces` is needed (Field required); nothing came"),
        (["--config", "no.yaml"], r"no.yaml is not there"),
        (["--variant", "a"], r"--variant of made"),
        (["--set", "traces=x", "--submit", "moon"], r"--submit takes slurm or local"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_run(runs, words, said):
    found = run(*words)
    assert found.exit_code == 2
    assert said in found.output
    assert runs == []


def test_an_unknown_study_is_refused_with_the_nearest(runs):
    with pytest.raises(InputError, match=r"'maid' came. Did you mean 'made'"):
        plans.planned("maid")


def test_a_run_goes_on_under_its_settings_and_is_refused_under_others(runs):
    words = ("--set", "traces=x", "--set", "out=here")
    for _ in range(2):
        assert run(*words).exit_code == 0
    assert len(runs) == 2
    refused = run(*words, "--seed", "1")
    assert refused.exit_code == 2
    assert "under other settings of seed" in refused.output
    # What is kept is a file of settings itself.
    assert run("--config", "here/made.yaml").exit_code == 0
    assert runs[2] == runs[0]


def test_a_dry_run_prints_a_file_of_settings_and_does_nothing(runs):
    found = run("--set", "traces=x", "--dry-run")
    assert yaml.safe_load(found.output) == {
        "problems": 64,
        "seed": 0,
        "shares": [0.0, 1.0],
        "scoring": {"frames": 3, "families": 9},
        "traces": "x",
        "out": "runs/made",
        "loud": False,
    }
    assert runs == []
    assert not Path("runs").exists()


def test_a_sweep_is_a_run_for_each_in_folders_of_their_own(runs):
    found = run("--set", "traces=x", "--sweep", "seed=1,2", "--sweep", "scoring.frames=1,6")
    assert found.exit_code == 0, found.output
    assert [(config.seed, config.scoring.frames) for config, *_ in runs] == [
        *((1, 1), (1, 6)),
        *((2, 1), (2, 6)),
    ]
    assert runs[1][2] == Path("runs/made/seed=1/scoring.frames=6")
    assert yaml.safe_load(Path(runs[1][2], "made.yaml").read_text())["seed"] == 1


def test_jobs_need_submitit_and_slurm(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"tokensense\[slurm\]"):
        submitted([["true"]], cluster="local", folder=tmp_path, resources={})
    monkeypatch.setitem(sys.modules, "submitit", types.ModuleType("submitit"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"`sbatch`; it is not on the PATH"):
        submitted([["true"]], cluster="slurm", folder=tmp_path, resources={})


def test_jobs_run_side_by_side_on_this_machine(tmp_path):
    commands = [[sys.executable, "-c", f"print({n})"] for n in (3, 4)]
    jobs = submitted(commands, cluster="local", folder=tmp_path, resources={"timeout_min": 5})
    assert [job.result().strip() for job in jobs] == ["3", "4"]


STUDIES = plans.found()
# Without defaults for what only the user has: traces, questions, stores; variants to choose from.
NEEDED = {"traces": "t.jsonl", "questions": "q.jsonl", "store": "s.zarr"}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_of_this_checkout_has_a_small_form_with_settings_that_are_told_apart(name):
    study = importlib.import_module(f"studies.{name}")
    keywords = list(inspect.signature(study.main).parameters)[1:]
    fields = study.Config.__dataclass_fields__
    assert not set(fields) & set(keywords)
    given = [{key: value} for key, value in NEEDED.items() if key in keywords]
    variant = next(iter(getattr(study, "CONFIGS", [])), None)
    plan = plans.planned(name, tiny=True, variant=variant, given=given)
    assert set(plan.settings) == set(fields) | set(keywords)
    # What is printed can be given.
    again = plans.planned(
        name, variant=variant, given=[yaml.safe_load(plans.written(plan.settings))]
    )
    assert again.settings == plan.settings
