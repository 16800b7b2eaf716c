"""The whole path on a tiny policy: import, probe, view, analyze, draw, info."""

import json
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr

import tokensense as ts
from tests.bigram import bigram_policy
from tests.probes.tiny import tiny_policy
from tokensense import analysis
from tokensense.errors import FigureError, InputError, SchemaError, StoreError
from tokensense.models.policy import Policy
from tokensense.models.tiny import SIZES, new_model
from tokensense.rollouts.table import text_of, token_texts
from tokensense.segments import offsets
from tokensense.tasks import arithmetic, tables
from tokensense.tasks.planted import PLANTED
from tokensense.tasks.problem import Problem

PROBLEMS, GROUP = 24, 2


def write_traces(path):
    """Two solutions a problem, one right and one wrong; one broken line."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(PROBLEMS):
        a, b = (int(x) for x in rng.integers(10, 99, 2))
        for right in (True, False):
            result = a + b if right else a + b + 1
            lines.append(
                json.dumps(
                    {
                        "prompt": f"Ann has {a} pens and buys {b}. How many has she?",
                        "completion": f"She has {a}+{b} = {result} pens.\nA: {result}",
                        "score": int(right),
                        "model": "m1" if right else "m2",
                        "gold": str(a + b),
                    }
                )
            )
    lines.insert(3, '{"prompt": "cut')
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


FIELDS = {
    "question": "prompt",
    "text": "completion",
    "reward": "score",
    "generator": "model",
    "answer": "gold",
}


def scored_study(folder, *, limit=9):
    """A store of some of these solutions, with a base; its policy lies beside it."""
    found, policy = ts.Study(folder / "s.zarr"), tiny_policy()
    policy.model.save_pretrained(folder / "policy")
    policy.tokenizer.save_pretrained(folder / "policy")
    traces = write_traces(folder / "traces.jsonl")
    found.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=limit)
    found.probe(policy, ["neutral"], frames=1, progress=False)
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    policy = tiny_policy()
    found = ts.Study(folder / "s.zarr")
    traces = write_traces(folder / "traces.jsonl")
    counts = found.ingest(traces, format="jsonl", policy=policy, fields=FIELDS)
    found.probe(policy, frames=1, families=3, progress=False)
    return found, counts


def test_counts_are_those_of_the_file_and_the_broken_line_is_named(study):
    _, counts = study
    assert (counts["problems"], counts["rollouts"]) == (PROBLEMS, PROBLEMS * GROUP)
    assert counts["rewards"] == {"right": PROBLEMS, "wrong": PROBLEMS, "undecided": 0}
    assert counts["groups_with_contrast"] == PROBLEMS
    assert len(counts["refused"]) == 1
    assert "traces.jsonl:4" in counts["refused"][0]


def test_flat_view_joins_probes_and_decodes_flags(study):
    tokens = study[0].tokens()
    assert tokens.sizes["condition"] == 1 + 2 + 6 + 1  # base, opposed, placebo, neutral
    assert tokens["condition"].values[0] == "base"
    inserted = tokens["inserted_tokens"].values
    assert np.all(inserted[0] == 0)
    assert np.all(inserted[1:] > 0)
    assert np.all(tokens["shift"].values[0] == 0)
    expected = tokens["logp"].values - tokens["logp"].values[0]
    np.testing.assert_array_equal(tokens["shift"].values, expected)
    assert {"digit", "operator", "final_answer"} <= set(tokens["kind"].values.tolist())
    assert tokens.attrs["off_policy"]
    first = tokens.isel(token=tokens["rollout"].values == 0)
    assert "".join(first["text"].values.tolist()).startswith("She has ")
    assert set(first["reward"].values.tolist()) == {1.0}


def test_named_probes_alone_can_be_viewed(study):
    tokens = study[0].tokens(["neutral"])
    assert set(tokens["probe"].values.tolist()) == {"base", "neutral"}


def test_analysis_is_kept_in_the_store_and_plain_xarray_opens_it(study):
    found = ts.analyze(study[0], resamples=200, seed=3)
    triple = found["triple"]
    assert triple["estimate"].dims == ("statistic", "term")
    verdict, placebo, difference = (
        triple["estimate"].sel(statistic="mean_absolute_shift").values.tolist()
    )
    assert difference == pytest.approx(verdict - placebo)
    assert int(triple["n_clusters"].max()) == PROBLEMS
    with xr.open_datatree(study[0].path, engine="zarr") as tree:
        stored = tree["stats/triple"].to_dataset()
        np.testing.assert_array_equal(stored["estimate"], triple["estimate"])
        assert tree["rollouts"].sizes["rollout"] == PROBLEMS * GROUP
    again = ts.analyze(study[0], resamples=200, seed=3)
    xr.testing.assert_identical(again["triple"], found["triple"])


def test_scores_left_on_disk_give_the_same_results_to_the_last_bit(study, monkeypatch):
    found = ts.analyze(study[0], resamples=100)
    monkeypatch.setattr(analysis, "SCORES_AT_ONCE", 1)
    on_disk = analysis._tokens_to_analyze(study[0])
    assert on_disk["logp"].chunks is not None
    again = ts.analyze(study[0], resamples=100)
    assert set(again) == set(found)
    for name, dataset in found.items():
        xr.testing.assert_identical(again[name], dataset)


def test_figures_need_an_analysis_and_then_come_with_their_data(tmp_path, study):
    empty = ts.Study(tmp_path / "e.zarr")
    policy = tiny_policy()
    traces = write_traces(tmp_path / "traces.jsonl")
    empty.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=2)
    empty.probe(policy, frames=1, families=3, progress=False)
    with pytest.raises(FigureError, match="analyze"):
        empty.figures(tmp_path / "none")
    ts.analyze(study[0], resamples=200)
    study[0].figures(tmp_path / "out")
    names = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert {".pdf", ".png", ".csv", ".json"} <= names


def test_info_says_what_is_there(study):
    info = study[0].info()
    assert info["off_policy"] is True
    assert info["scored_by"] == "tiny"
    assert set(info["probes"]) == {"base", "opposed", "placebo", "neutral"}
    assert info["probes"]["opposed"]["comparability"] == {"ok": 2 * PROBLEMS * GROUP}
    assert info["finish"] == {"unknown": PROBLEMS * GROUP}
    json.dumps(info)


def test_other_rollouts_are_refused(tmp_path, study):
    traces = write_traces(tmp_path / "traces.jsonl")
    with pytest.raises(StoreError, match="nothing was written"):
        study[0].ingest(traces, format="jsonl", policy=tiny_policy(), fields=FIELDS, limit=2)


def test_the_closed_form_policy_has_no_shift_to_the_last_bit(tmp_path):
    policy = bigram_policy()
    study = ts.Study(tmp_path / "b.zarr")
    traces = write_traces(tmp_path / "traces.jsonl")
    study.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=3)
    floor = study.probe(policy, ["opposed", "answer"], frames=2, progress=False)["numerical_floor"]
    shift = study.tokens()["shift"].values
    assert shift.shape[0] == 1 + 4 + 4
    assert np.all(shift == 0)
    assert np.isfinite(study.tokens()["logp"].values).all()
    assert floor


def test_a_missing_store_and_an_empty_pattern_say_so(tmp_path):
    assert "no store there yet" in repr(ts.Study(tmp_path / "none.zarr"))
    with pytest.raises(StoreError):
        ts.Study(tmp_path / "none.zarr", mode="r").info()
    with pytest.raises(StoreError, match="matches none"):
        ts.open_studies(str(tmp_path / "*.zarr"))


def test_a_probe_does_not_make_a_store(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        ts.Study(tmp_path / "typo.zarr").probe(tiny_policy(), frames=1)
    assert not (tmp_path / "typo.zarr").exists()


def test_many_studies_open_for_comparison(study):
    found = ts.open_studies(str(study[0].path.parent / "*.zarr"))
    (only,) = found.values()
    assert only.mode == "r"
    assert f"{PROBLEMS * GROUP} rollouts" in repr(only)
    path = study[0].path
    assert set(ts.open_studies([path, path.parent / "*.zarr"])) == set(found)
    assert set(ts.open_studies(path)) == set(found)
    with pytest.raises(StoreError, match=r"typo\.zarr' matches none"):
        ts.open_studies([path, path.parent / "typo.zarr"])


def test_own_samples_are_on_policy_and_checked(tmp_path):
    policy = tiny_policy()
    problems = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {i}+{i}?", "answer": f"so #### {2 * i}"} for i in range(3)]
    problems.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    study = ts.Study(tmp_path / "g.zarr")
    counts = study.generate(
        policy, problems, task="gsm8k", limit=2, group=2, max_new_tokens=5, seed=1, progress=False
    )
    assert (counts["problems"], counts["rollouts"]) == (2, 4)
    assert counts["ids_origin"] == {"exact": 4}
    assert sum(counts["rewards"].values()) == 4
    assert sum(counts.get("undecided", {}).values()) == counts["rewards"]["undecided"]
    again = study.generate(
        policy, problems, task="gsm8k", limit=2, group=2, max_new_tokens=5, seed=1, progress=False
    )
    assert again["rewards"] == counts["rewards"]
    with pytest.raises(StoreError, match="has others"):
        study.generate(policy, problems, limit=2, group=2, max_new_tokens=5, progress=False)
    study.probe(policy, ["opposed"], frames=1, progress=False)
    assert study.info()["off_policy"] is False
    assert not study.tokens().attrs["off_policy"]


def test_samples_at_another_temperature_are_off_policy(tmp_path):
    policy = tiny_policy()
    study = ts.Study(tmp_path / "cold.zarr")
    cold = {"max_new_tokens": 3, "temperature": 0.5, "progress": False}
    study.generate(policy, [Problem("p", "What is 1+1?", "2")], **cold)
    study.probe(policy, ["opposed"], frames=1, progress=False)
    assert study.info()["off_policy"] is True
    assert study.tokens().attrs["off_policy"]


def words_policy(task):
    """Random weights over the words of a planted task."""
    words = {"arithmetic": arithmetic.VOCABULARY, "tables": tables.VOCABULARY}[task]
    return Policy(*new_model(words, SIZES[task], seed=0), name=task)


@pytest.mark.parametrize("task", ["arithmetic", "tables"])
def test_problems_of_a_planted_task_are_drawn_and_every_token_is_labelled(tmp_path, task):
    policy, study = words_policy(task), ts.Study(tmp_path / "p.zarr")
    asked = {"task": task, "group": 4, "max_new_tokens": 12, "seed": 3, "progress": False}
    counts = study.generate(policy, 6, **asked)
    assert (counts["problems"], counts["rollouts"]) == (6, 24)
    assert counts["rewards"]["undecided"] == 0
    assert counts["labels"].get("unlabeled", 0) == 0
    assert counts["ids_origin"] == {"exact": 24}
    assert study.generate(policy, 6, **asked) == counts
    with pytest.raises(StoreError, match="has others"):
        study.generate(policy, 7, **asked)
    rollouts = study.archive().rollouts()
    assert np.isfinite(rollouts["sampled_logp"]).all()
    # What the store says is what the task says of the words.
    words = [raw.decode().strip() for raw in token_texts(rollouts)]
    bound = offsets(rollouts["length"].values)
    questions = text_of(rollouts, "question")
    for row, (start, end) in enumerate(pairwise(bound)):
        question = questions[int(rollouts["problem_of"][row])]
        truth = PLANTED[task].label(question, words[start:end])
        assert rollouts["kind"].values[start:end].tolist() == list(truth.kinds)
        assert rollouts["wrong_token"].values[row] == truth.wrong_token
    assert (rollouts["wrong_token"] >= 0).any()


def test_problems_and_task_must_go_together(tmp_path):
    policy, study = words_policy("arithmetic"), ts.Study(tmp_path / "p.zarr")
    with pytest.raises(SchemaError, match="give their file"):
        study.generate(policy, 3, progress=False)
    with pytest.raises(SchemaError, match="give their number"):
        study.generate(policy, "file.jsonl", task="arithmetic", progress=False)
    with pytest.raises(SchemaError, match="`problems` needs a value"):
        study.generate(policy, 0, task="arithmetic", progress=False)
    asked = [Problem("p", "What is 1+1?", "2")]
    with pytest.raises(InputError, match="is needed"):
        study.generate(policy, asked, task="arithmetic", max_new_tokens=2, progress=False)
    assert not study.path.exists()


def test_next_weeks_traces_are_appended_and_only_they_are_scored(tmp_path):
    policy = tiny_policy()
    study = ts.Study(tmp_path / "s.zarr")
    lines = write_traces(tmp_path / "all.jsonl").read_text().splitlines()
    del lines[3]
    for week, chosen in enumerate((lines[:6], lines[6:10])):
        (tmp_path / f"{week}.jsonl").write_text("\n".join(chosen))
    given = {"format": "jsonl", "policy": policy, "fields": FIELDS}
    study.ingest(tmp_path / "0.jsonl", **given)
    study.probe(policy, ["opposed"], frames=1, progress=False)
    ts.analyze(study, resamples=100)
    first = study.tokens()
    with pytest.raises(StoreError, match="the same rollouts from start to end"):
        study.ingest(tmp_path / "1.jsonl", **given)
    found = study.ingest(tmp_path / "1.jsonl", append=True, **given)
    assert (found["rollouts"], found["problems"]) == (10, 5)
    assert found["probes"]["opposed"]["state"] == "unfinished"
    assert found["analyses"] == []
    with pytest.raises(StoreError, match=r"/probes/base .* on the first 6 of them"):
        study.tokens()
    again = study.ingest(tmp_path / "1.jsonl", append=True, **given)
    assert again["rollouts"] == 10
    done = study.probe(policy, ["opposed"], frames=1, progress=False)
    both = study.tokens()
    conditions = first.sizes["condition"]
    added = both.sizes["token"] - first.sizes["token"]
    assert done["scored_tokens"] == added * conditions
    # The first tokens' numbers are those of before, to the last bit; the new ones are numbers.
    before = both["logp"].isel(token=slice(first.sizes["token"]))
    np.testing.assert_array_equal(before.values, first["logp"].values)
    assert np.isfinite(both["logp"].values).all()
    assert np.unique(both["rollout"].values).size == 10
