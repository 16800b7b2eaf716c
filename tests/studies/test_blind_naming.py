"""The blinding, the shuffling and the adding up; what is named is the business of tests/stats."""

import csv
import json

import numpy as np
import pytest
import xarray as xr

from studies import blind_naming as study
from tokensense.models import tiny
from tokensense.schema import Label

CONFIG = study.Config(
    studies=1, problems=3, group=2, max_new_tokens=12, frames=1, families=3, resamples=100
)
JOB = study.Job(study.RANDOM, 0, 7)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    path = tmp_path_factory.mktemp("blind") / "sampled.zarr"
    return study.sampled(JOB, study.policy_of(JOB, {}), CONFIG, path=path)


@pytest.fixture(scope="module")
def blind(sampled, tmp_path_factory):
    path = tmp_path_factory.mktemp("blind") / "0.zarr"
    return study.blinded(sampled, path=path, shuffle="no", seed=7)


def test_a_blind_store_has_the_arrays_and_the_roles(sampled, blind):
    one, other = sampled.tokens(), blind.tokens()
    for name in ("logp", "entropy", "p_square_sum", "comparable", "length"):
        np.testing.assert_array_equal(one[name], other[name])
    for name in ("condition", "family", "level", "frame", "token_id", "reward", "is_wrong_token"):
        np.testing.assert_array_equal(one[name], other[name])
    assert not other.attrs["off_policy"]


def test_a_blind_store_tells_nothing_of_the_policy(sampled, blind):
    tokens = sampled.tokens()
    told = [tokens.attrs["scored_by"], tokens.attrs["policy_digest"], "arithmetic-0"]
    told += [tokens.attrs["tokenizer_digest"], str(sampled.path), "verdict right"]
    for file in blind.path.rglob("*"):
        if file.is_file() and ".work" not in file.parts:
            content = file.read_bytes()
            for word in told:
                assert word.encode() not in content, (file, word)
    info = blind.info()
    assert info["sampled_by"] == [study.BLIND]
    assert set(info["generators"]) == {""}
    assert "sampling" not in blind.archive().rollouts().attrs


@pytest.mark.parametrize("shuffle", ["within", "across"])
def test_labels_are_permuted_and_other_marks_of_errors_are_gone(shuffle):
    owner = np.repeat(np.arange(20), 6)
    reward = np.random.default_rng(1).integers(0, 2, 120).astype(np.float32)
    marks = np.arange(120).astype(np.int32)
    rollouts = xr.Dataset(
        {
            "problem_of": ("rollout", owner),
            "reward": ("rollout", reward),
            "label": ("rollout", np.full(120, Label.ERROR, np.int8)),
            "wrong_step": ("rollout", marks),
            "wrong_token": ("rollout", marks),
        }
    )
    found = study._shuffled(rollouts, within=shuffle == "within", seed=3)
    moved = found["reward"].values
    assert (moved != reward).any()
    sums = [np.bincount(owner, values) for values in (reward, moved)]
    assert sums[0].sum() == sums[1].sum()
    assert (sums[0] == sums[1]).all() == (shuffle == "within")
    assert (found["label"] == Label.UNLABELED).all()
    assert (found["wrong_step"] == -1).all()
    assert (found["wrong_token"] == -1).all()


def test_every_kind_has_its_studies_and_shuffled_ones_come_from_both():
    jobs = study.jobs(study.Config())
    kinds = [kind for job in jobs for kind in job.labels()]
    assert {kind: kinds.count(kind) for kind in study.KINDS} == dict.fromkeys(study.KINDS, 20)
    sources = [job.kind for job in jobs if study.SHUFFLED in job.labels()]
    assert sources.count("truthful") == sources.count("mixed") == 10
    assert len({job.seed for job in jobs}) == len(jobs)
    assert [job.kind for job in jobs] != sorted(job.kind for job in jobs)


def test_policies_are_found_by_their_cards(tmp_path):
    for number, kind in enumerate((*study.PLANTED, "mixed", "tables")):
        folder = tmp_path / f"p{number}"
        folder.mkdir()
        (folder / tiny.CARD).write_text(json.dumps({"variant": kind}))
    found = study.policy_folders([tmp_path])
    assert [path.name for path in found["mixed"]] == ["p2", "p4"]
    (tmp_path / "p3" / tiny.CARD).unlink()
    with pytest.raises(SystemExit, match="there is none of placebo"):
        study.policy_folders([tmp_path])


def test_lines_of_the_same_thresholds_add_up(tmp_path, capsys):
    own = study.THRESHOLDS.digest
    lines = [
        {"kind": kind, "word": word, "thresholds": digest, "commit": "c", "policy": kind}
        for kind, word, digest in [
            ("mixed", "mixed", own),
            ("mixed", "truthful", own),
            ("random", "random", own),
            ("mixed", "mixed", "other"),
        ]
    ]
    study.written(tmp_path / study.STUDIES, lines)
    study.summary(tmp_path, study.Config())
    with (tmp_path / "confusion.csv").open() as file:
        rows = {row["kind"]: row for row in csv.DictReader(file)}
    assert (rows["mixed"]["studies"], rows["mixed"]["right"]) == ("2", "1")
    assert rows["mixed"]["truthful"] == rows["random"]["random"] == "1"
    assert rows["style"]["studies"] == "0"
    about = json.loads((tmp_path / "confusion.json").read_text())
    assert about["lines_of_other_thresholds"] == 1
    assert about["policies"] == ["mixed"]
    assert "3 lines" in capsys.readouterr().out
