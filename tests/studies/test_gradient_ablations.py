"""Published ablations against one backward pass a rule, and what each arm must be."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from studies import gradient_ablations as study
from studies import learning_value
from studies.learning_rules import drawn_batch, evidence
from studies.learning_tables import read
from tokensense.models.policy import load_policy
from tokensense.segments import broadcast
from tokensense.tasks import tables

SMALL = study.Config(
    replace(learning_value.TINY, batches=3, problems=4, reference=16), resamples=200
)


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny:tables")


@pytest.fixture(scope="module")
def batch(policy):
    chains = tables.draw_chains(
        tables.REGIMES["C"], count=6, generator=np.random.default_rng(0), distinct=True
    )
    return drawn_batch(policy, chains, group=4, seed=1)


@pytest.fixture(scope="module")
def credit(policy, batch):
    told = evidence(policy, batch, key=3)
    return told, {name: rule(told) for name, rule in study.RULES.items()}


def test_halves_and_masks_part_the_tokens(credit):
    _, given = credit
    uniform = given["uniform"]
    halves = [given[f"delta_{side}_half"] for side in study.HALVES]
    np.testing.assert_array_equal(halves[0] + halves[2], uniform)
    np.testing.assert_array_equal(given["high_entropy"] * given["low_entropy"], 0.0)
    counted = [np.count_nonzero(half) for half in halves]
    inside = np.count_nonzero(uniform)
    assert all(0.3 * inside < count < 0.7 * inside for count in counted)
    lamb = given["delta"][uniform != 0] / uniform[uniform != 0]
    kept = halves[0][uniform != 0] != 0
    assert lamb[kept].min() >= lamb[~kept].max()


def test_arms_differ_as_they_are_named(credit):
    told, given = credit
    same = np.abs(given["sd_grpo"]) == np.abs(given["sd_random"])
    assert same.all()
    assert (given["sd_grpo"] != given["sd_random"]).any()
    sums = [np.abs(given["cscr_0.8_q0.5"]).sum(), np.abs(given["uniform"]).sum()]
    assert sums[0] == pytest.approx(sums[1])
    np.testing.assert_allclose(
        given["uniform_sequence"], given["uniform"] / broadcast(told.length, told.length)
    )
    moved = [np.abs(given[f"cscr_{gamma}"] - given["uniform"]) for gamma in ("0.2", "-0.2")]
    assert np.corrcoef(*moved)[0, 1] > 0.5


def test_the_gradient_of_length_is_that_of_lengths_by_differences(policy, batch, tmp_path):
    found = study.length_gradient(
        learning_value.Config(group=4), policy, lambda: batch, tmp_path / "length.npz"
    )
    size = batch.length.astype(float)
    truth = torch.zeros(found.size, dtype=torch.float64)
    for place, (prompt, response) in enumerate(batch.branches):
        policy.model.zero_grad()
        logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].double()
        rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        rows[torch.arange(len(response)), torch.tensor(response)].sum().backward()
        others = [n for n in np.flatnonzero(batch.group == batch.group[place]) if n != place]
        ahead = size[place] - size[others].mean()  # leave one out is the same estimate
        flat = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        truth += ahead * flat / size.size
    policy.model.zero_grad()
    np.testing.assert_allclose(found, truth.numpy(), rtol=1e-3, atol=1e-6)
    kept = study.length_gradient(
        learning_value.Config(), policy, pytest.fail, tmp_path / "length.npz"
    )
    np.testing.assert_array_equal(kept, found)


def test_a_run_that_was_stopped_goes_on_with_the_same_numbers(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    study.main(SMALL, out=whole, work=tmp_path / "w")
    study.main(
        replace(SMALL, study=replace(SMALL.study, batches=2)), out=parts, work=tmp_path / "w"
    )
    study.main(SMALL, out=parts, work=tmp_path / "w")
    assert read(whole / "table.csv") == read(parts / "table.csv")
    lines = {(row["base"], row["rule"]): row for row in read(whole / "table.csv")}
    assert {base for base, _ in lines} == {"tiny:tables, seed 0", "all"}
    uniform = lines["all", "uniform"]
    assert (float(uniform["difference"]), float(uniform["norm"])) == (0.0, 1.0)
