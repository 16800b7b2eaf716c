"""A TRL run of two steps on a tiny policy: imported, probed and analyzed.

TRL itself makes the files where it is installed (extra `peers`), or has made those in `trl/`
beside this module (`python -m tests.importing.make_trl tests/importing/trl`). Without either, the
same path is walked with a parquet made here after TRL's source, from samples whose ids are known.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tokensense as ts
from tests.importing.make_trl import GROUP, PROBLEMS, STEPS
from tokensense.errors import InputError
from tokensense.rollouts.table import text_of
from tokensense.segments import offsets
from tokensense.tasks.planted import PLANTED

OWN_PROBLEMS, OWN_GROUP = 4, 3
CHECKED_IN = Path(__file__).parent / "trl"


@pytest.fixture(scope="module")
def policy():
    return ts.load_policy("tiny:mixed")


@pytest.fixture(scope="module")
def trl_run(tmp_path_factory):
    """TRL's own files."""
    pytest.importorskip("pyarrow", reason="needs the extra `io`")
    out = tmp_path_factory.mktemp("trl")
    if find_spec("trl") is not None:
        command = [sys.executable, "-m", "tests.importing.make_trl", str(out)]
        subprocess.run(
            command,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            timeout=300,
        )
        return out
    if CHECKED_IN.is_dir():
        return Path(shutil.copytree(CHECKED_IN, out, dirs_exist_ok=True))
    pytest.skip("TRL's own completions need the extra `peers` (trl), or files in tests/importing")


@pytest.fixture(scope="module")
def sampled(policy, tmp_path_factory):
    """Samples with their ids."""
    study = ts.Study(tmp_path_factory.mktemp("own") / "s.zarr")
    study.generate(
        policy, OWN_PROBLEMS, task="arithmetic", group=OWN_GROUP, max_new_tokens=64, progress=False
    )
    return study.archive().rollouts()


@pytest.fixture(scope="module")
def made_here(policy, sampled, tmp_path_factory):
    """The columns of `GRPOTrainer.log`, of the samples."""
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `io`")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("made") / "completions"
    folder.mkdir()
    reward = sampled["reward"].values.tolist()
    questions = text_of(sampled, "question")
    prompts = [policy.plain_text(policy.render(question)) for question in questions]
    table = {
        "step": [1] * len(reward),
        "prompt": [prompts[place] for place in sampled["problem_of"].values.tolist()],
        "completion": [policy.plain_text(ids) for ids in ids_of(sampled)],
        "right": reward,
        "advantage": [0.0] * len(reward),
    }
    parquet.write_table(arrow.table(table), folder / "completions_00001.parquet")
    return folder.parent


def ids_of(rollouts):
    bound = offsets(rollouts["length"].values).tolist()
    ids = rollouts["token_id"].values.tolist()
    return [ids[a:b] for a, b in pairwise(bound)]


def walked(run, policy, store):
    """Import, probe, analyze; the counts and the results."""
    study = ts.Study(store)
    counts = study.ingest(run, format="trl", policy=policy)
    study.probe(policy, ["opposed", "placebo"], frames=1, families=1, progress=False)
    return study, counts, ts.analyze(study, resamples=100)


def require_walked(counts, results, *, problems, group):
    assert counts["problems"] == problems
    assert counts["rollouts"] == problems * group
    assert counts["ids_origin"] == {"retokenized": problems * group}
    assert counts["rewards"]["right"] + counts["rewards"]["wrong"] == problems * group
    assert counts["refused"] == []
    assert "engine" not in counts
    triple = results["triple"].sel(statistic="same_direction")["estimate"].values
    assert np.isfinite(triple).all()


def test_a_run_of_trl_is_imported_probed_and_analyzed(trl_run, policy, tmp_path):
    """Two steps, each a batch of groups; every question came once."""
    study, counts, results = walked(trl_run, policy, tmp_path / "s.zarr")
    require_walked(counts, results, problems=STEPS * PROBLEMS, group=GROUP)
    asked = {problem.question for problem in PLANTED["arithmetic"].problems(STEPS * PROBLEMS, 0)}
    assert set(text_of(study.archive().rollouts(), "question")) == asked
    assert study.tokens().attrs["off_policy"]


def test_what_trl_writes_of_known_samples_comes_back(made_here, sampled, policy, tmp_path):
    """Pitfall 5: of the ids only the end token is lost, and nothing claims to know better."""
    study, counts, results = walked(made_here, policy, tmp_path / "s.zarr")
    require_walked(counts, results, problems=OWN_PROBLEMS, group=OWN_GROUP)
    assert counts["prompts"] == {"same text": OWN_PROBLEMS}  # the context that was sampled in
    found = study.archive().rollouts()
    assert text_of(found, "question") == text_of(sampled, "question")
    np.testing.assert_array_equal(found["prompt_id"], sampled["prompt_id"])
    np.testing.assert_array_equal(found["reward"], sampled["reward"])
    end = policy.tokenizer.eos_token_id
    assert ids_of(found) == [ids[:-1] if ids[-1] == end else ids for ids in ids_of(sampled)]
    assert json.loads(found.attrs["drift"])["rollouts"] == 0
    assert set(found["finish"].values.tolist()) == {0}


def test_exact_ids_of_a_trainer_keep_prompt_end_token_and_log_probs(sampled, policy, tmp_path):
    """prime-rl's export of the same samples: nothing is lost, and the engine is asked for."""
    folder = tmp_path / "token_exports" / "step_1"
    folder.mkdir(parents=True)
    prompts = [policy.render(question) for question in text_of(sampled, "question")]
    bound = offsets(sampled["length"].values).tolist()
    with (folder / "rank_0.jsonl").open("w") as file:
        for place, ids in enumerate(ids_of(sampled)):
            prompt = prompts[int(sampled["problem_of"][place])]
            logps = sampled["sampled_logp"].values[bound[place] : bound[place + 1]].tolist()
            count = len(prompt) + len(ids)
            row = {
                "schema_version": 1,
                "export_step": 1,
                "export_sequence_idx": place,
                "token_ids": prompt + ids,
                "loss_mask": [False] * len(prompt) + [True] * len(ids),
                "rewards": [float(sampled["reward"][place])] * count,
                "inference_logprobs": [0.0] * len(prompt) + logps,
            }
            file.write(json.dumps(row) + "\n")
    (folder / "STABLE").touch()
    engine = {"mode": "processed", "temperature": 1, "top_p": 1, "top_k": -1}
    study = ts.Study(tmp_path / "s.zarr")
    counts = study.ingest(tmp_path, format="prime_rl", policy=policy, engine=engine)
    assert counts["prompts"] == {"same ids": OWN_PROBLEMS}
    assert counts["ids_origin"] == {"exact": OWN_PROBLEMS * OWN_GROUP}
    assert counts["engine"]["comparable"]
    found = study.archive().rollouts()
    for name in ("token_id", "sampled_logp", "prompt_id", "reward", "length"):
        np.testing.assert_array_equal(found[name], sampled[name], err_msg=name)
    assert text_of(found, "question") == text_of(sampled, "question")


def test_an_engine_without_log_probs_is_refused(made_here, policy, tmp_path):
    with pytest.raises(InputError, match="need log-probabilities that they are about"):
        ts.Study(tmp_path / "s.zarr").ingest(
            made_here, format="trl", policy=policy, engine={"mode": "raw"}
        )
