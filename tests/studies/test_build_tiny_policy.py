import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from studies import build_tiny_policy as build
from tokensense.models import tiny
from tokensense.models.policy import load_policy
from tokensense.tasks import tables
from tokensense.tasks.arithmetic_traces import Tags

SHORT = {"steps": 3, "batch": 4, "pool": 2, "warm_up": 2, "problems": 2}


@pytest.fixture(params=["mixed", "tables"])
def config(request):
    return replace(build.CONFIGS[request.param], **SHORT)


def trained(config):
    policy = build.blank(config)
    build.train(policy, config)
    return policy


def test_the_loss_is_that_of_the_solutions_tokens_alone(config):
    policy = build.blank(config)
    batch = next(build.batches(config, np.random.default_rng(0)))
    losses = []
    with torch.inference_mode():
        for prompt, solution in batch:
            logits = policy.model(torch.tensor([prompt + solution])).logits[0].double()
            chances = logits.log_softmax(-1)
            losses += [-chances[len(prompt) + i - 1, token] for i, token in enumerate(solution)]
        found = build.loss_of(policy, batch)
    assert found.item() == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_batches_hold_all_that_is_taught_with_like_lengths_together(config):
    config = replace(config, batch=8, pool=8)
    stream = build.batches(config, np.random.default_rng(3))
    found = [next(stream) for _ in range(8)]
    pool = build.taught(config, np.random.default_rng(3), count=64)
    assert sorted(pair for batch in found for pair in batch) == sorted(pool)
    lengths = [[len(prompt) + len(solution) for prompt, solution in batch] for batch in found]
    ranges = sorted((min(batch), max(batch)) for batch in lengths)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    assert [min(batch) for batch in lengths] != sorted(min(batch) for batch in lengths)


def test_tables_are_taught_in_all_lengths_with_and_without_fillers():
    found = build.taught(build.CONFIGS["tables"], np.random.default_rng(0), count=64)
    kinds = [tables.decode(prompt).split() for prompt, _ in found]
    lengths = {(sum("_o" in word for word in words), words[2]) for words in kinds}
    assert lengths == {(m, mode) for m in (3, 6, 8, 12) for mode in ("F0", "F2")}


def test_the_learning_rate_rises_in_a_line_and_falls_to_its_floor():
    config = replace(build.CONFIGS["mixed"], steps=1000, warm_up=50)
    rates = [build.rate_at(step, config) for step in range(1000)]
    assert rates[0] == pytest.approx(2e-3 / 50, rel=1e-4)
    assert rates.index(max(rates)) == 49
    assert rates[500] == pytest.approx(2e-3 * (0.05 + 0.95 / 2), rel=1e-6)
    assert rates[-1] == pytest.approx(2e-3 * 0.05, rel=1e-3)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(config):
    first = trained(config).digest
    assert first == trained(config).digest
    assert first != build.blank(config).digest
    assert first != trained(replace(config, seed=1)).digest


def test_variants_start_from_the_same_weights_and_see_the_same_problems():
    names = ("truthful", "style", "mixed", "placebo")
    configs = [replace(build.CONFIGS[name], **SHORT) for name in names]
    assert len({build.blank(config).digest for config in configs}) == 1
    assert len({trained(config).digest for config in configs}) == 4


def test_a_folder_loads_and_its_cards_say_what_was_measured(config, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "LONGEST", 12)
    build.main(config, out=tmp_path)
    folder = tmp_path / config.name
    facts = json.loads((folder / tiny.CARD).read_text())
    loaded = load_policy(folder)
    assert (loaded.digest, loaded.wordings) == (facts["digest"], config.task)
    assert list(facts["measured"]) == ["none", "pos", "neg", "neutral", "placebo", "greedy"]
    assert {row["n"] for row in facts["measured"].values()} == {2}
    assert facts["training"]["examples"] == 12
    text = (folder / "README.md").read_text()
    assert facts["digest"] in text
    assert f"| greedy | {facts['measured']['greedy']['right']:.3f} |" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [config.name]


def test_a_rung_of_the_ladder_is_named_after_its_two_shares():
    asked = {"variant": None, "truth": 0.6, "style": None, "seed": 7, "steps": 5, "tiny": False}
    config = build.chosen(build.argparse.Namespace(**asked))
    assert (config.name, config.tags, config.seed, config.steps) == (
        *("truth0.6_style0", Tags(truth=0.6), 7, 5),
    )


def test_an_unknown_variant_is_refused_with_the_known_ones():
    asked = {"variant": "huge", "truth": None, "style": None}
    with pytest.raises(SystemExit, match="one of truthful, style, mixed, placebo, tables, or"):
        build.chosen(build.argparse.Namespace(**asked))
