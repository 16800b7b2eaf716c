"""Supervised training on written sums, on a shipped policy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from studies.teach_sums import TINY, main, step, taught
from tests.reference.trainer import reference_log_probs
from tokensense.models.policy import load_policy
from tokensense.tasks.planted import PLANTED


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny:mixed")


def test_what_is_taught_is_right_and_ends(policy):
    stream = taught(policy, np.random.default_rng(0))
    for _ in range(20):
        prompt, response = next(stream)
        assert response[-1] == policy.tokenizer.eos_token_id
        question = policy.plain_text(prompt).removesuffix("?").strip()
        words = [policy.token_bytes(i).decode().strip() for i in response]
        assert PLANTED["arithmetic"].label(question, words).right


def test_loss_and_gradient_are_those_of_the_plain_mean(policy):
    stream = taught(policy, np.random.default_rng(0))
    batch = [next(stream) for _ in range(3)]
    loss = step(policy, batch, replace(TINY, tokens_per_row=64))
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    policy.model.zero_grad()
    logps = [logp for branch in batch for logp in reference_log_probs(policy.model, *branch, 1.0)]
    truth = -torch.stack(logps).mean()
    truth.backward()
    assert loss == pytest.approx(float(truth.detach()), rel=1e-5)
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)
    policy.model.zero_grad()


def test_pilots_are_written_and_the_policy_can_be_loaded(tmp_path):
    right = main(TINY, model="tiny:mixed", out=tmp_path)
    lines = (tmp_path / "pilot.csv").read_text().splitlines()
    assert lines[0] == "step,loss,seconds,right,se,n,tokens"
    assert 2 <= len(lines) <= 4
    assert float(lines[-1].split(",")[3]) == right
    assert load_policy(tmp_path).wordings == "arithmetic"
