"""What is seen at the head, against autograd through the model's own logits."""

import numpy as np
import pytest
import torch

from tests.probes.test_gradients import branches_of, small_policy
from tokensense.errors import SchemaError
from tokensense.probes import proxies
from tokensense.probes.proxies import head_view


def test_against_autograd():
    policy = small_policy()
    branches = branches_of(policy)
    found = head_view(policy, branches, residual=True, tokens_per_row=9)
    weight = policy.model.lm_head.weight.detach()
    place = 0
    for context, response in branches:
        ids = torch.tensor([context + response])
        states = policy.model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        for token, state in zip(response, states[len(context) - 1 : -1], strict=True):
            leaf = state.detach().requires_grad_()
            logits = (weight @ leaf).requires_grad_()
            logits.retain_grad()
            logp = logits.log_softmax(-1)[token]
            logp.backward()
            for name, expected in (
                ("hidden", leaf),
                ("logp", logp),
                ("hidden_gradient", leaf.grad),
                ("residual", logits.grad),
            ):
                np.testing.assert_allclose(
                    getattr(found, name)[place], expected.detach().numpy(), atol=2e-5, err_msg=name
                )
            place += 1
    assert place == len(found.logp)


def test_the_likeliest_tokens_alone():
    policy = small_policy()
    branches = branches_of(policy)
    full, one = head_view(policy, branches), head_view(policy, branches, top=1)
    assert full.residual.shape[1] == 0
    weight = policy.model.lm_head.weight.detach().numpy()
    target = np.concatenate([b.response for b in branches])
    best = np.argmax(full.hidden @ weight.T, axis=1)
    np.testing.assert_allclose(one.hidden_gradient, weight[target] - weight[best], atol=1e-6)
    assert (one.hidden_gradient[best == target] == 0).all()
    everything = head_view(policy, branches, top=40)
    np.testing.assert_array_equal(everything.hidden_gradient, full.hidden_gradient)


def test_a_residual_too_large_is_refused(monkeypatch):
    policy = small_policy()
    monkeypatch.setattr(proxies, "LARGEST_RESIDUAL", 10)
    with pytest.raises(SchemaError, match="onehot - p needs at most 10 numbers"):
        head_view(policy, branches_of(policy), residual=True)
