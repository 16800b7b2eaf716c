"""verl's estimators: its documented tensors in, (advantages, returns) out."""

import sys
import types

import numpy as np
import pytest
import torch

from tokensense.adapters import verl
from tokensense.errors import MissingExtraError, SchemaError


def tensors():
    """Two groups of two; rewards on the last token, as verl lays them."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    rewards = torch.zeros(4, 4)
    for row, (last, reward) in enumerate([(2, 1.0), (1, 0.0), (3, 1.0), (0, 1.0)]):
        rewards[row, last] = reward
    index = np.array(["a", "a", "b", "b"], dtype=object)
    return {"token_level_rewards": rewards, "response_mask": mask, "index": index}


def verl_grpo(token_level_rewards, response_mask, index, epsilon=1e-6):
    """compute_grpo_outcome_advantage of verl, from its documentation: plain loops."""
    scores = token_level_rewards.sum(dim=-1)
    found = torch.zeros_like(scores)
    for i, name in enumerate(index):
        members = torch.stack([s for s, other in zip(scores, index, strict=True) if other == name])
        spread = members.std()
        found[i] = (scores[i] - members.mean()) / (spread + epsilon) if spread > 0 else 0.0
    return found[:, None] * response_mask


def test_uniform_is_verls_own_grpo():
    batch = tensors()
    advantages, returns = verl.estimator("uniform")(**batch, config=None)
    torch.testing.assert_close(advantages, verl_grpo(**batch))
    assert advantages is returns
    assert (advantages[2:] == 0).all()  # equal rewards in a group


def test_without_the_deviation_the_mean_alone_is_taken_off():
    advantages, _ = verl.estimator("uniform", by_std=False)(**tensors())
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.5, -0.5, 0.0, 0.0]))


def test_evidence_comes_as_keywords_and_what_is_missing_is_named():
    batch = tensors()
    shifts = {name: torch.rand(4, 4) for name in ("z_pos", "z_neg")}
    advantages, _ = verl.estimator("cscr")(**batch, **shifts, old_log_probs=torch.rand(4, 4))
    plain, _ = verl.estimator("uniform")(**batch)
    torch.testing.assert_close(advantages.sum(1), plain.sum(1))
    assert not torch.allclose(advantages, plain)
    with pytest.raises(SchemaError, match="z_pos"):
        verl.estimator("cscr")(**batch)
    with pytest.raises(SchemaError, match="rule"):
        verl.estimator("nothing")


def test_registration_uses_verls_own_registry(monkeypatch):
    known = {}

    def register_adv_est(name):
        return lambda made: known.setdefault(name, made)

    module = types.ModuleType("verl.trainer.ppo.core_algos")
    module.register_adv_est = register_adv_est
    with pytest.raises(MissingExtraError, match="verl"):
        verl.register("cscr")
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert verl.register("cscr") == "tokensense_cscr"
    assert verl.register("uniform", name="mine") == "mine"
    plain, _ = known["mine"](**tensors())
    torch.testing.assert_close(plain, verl_grpo(**tensors()))
