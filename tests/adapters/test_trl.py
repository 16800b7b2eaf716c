"""TRL's trainer with our credit: two real steps; needs the extra `peers`.

python -m pytest tests/adapters/test_trl.py -p no:warnings
"""

import importlib.util

import numpy as np
import pytest
import torch

from tests.importing.make_trl import POLICY, right
from tokensense.adapters.trl import batch_credit, credit_trainer
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Credit
from tokensense.credit.evidence import Evidence
from tokensense.errors import MissingExtraError, PolicyError, SchemaError
from tokensense.models.plan import Branch
from tokensense.models.policy import load_policy
from tokensense.models.scorer import score
from tokensense.tasks.planted import PLANTED

HAS_TRL = importlib.util.find_spec("trl") is not None
needs_trl = pytest.mark.skipif(not HAS_TRL, reason="the extra `peers` (TRL) is not installed")
TOLD = {"z_pos": "verdict right", "z_neg": "verdict wrong"}


def trained(trainer_class, folder, **options):
    """Losses and weights after two steps."""
    from datasets import Dataset
    from trl import GRPOConfig

    problems = PLANTED["arithmetic"].problems(8, 0)
    rows = [{"prompt": [{"role": "user", "content": problem.question}]} for problem in problems]
    torch.manual_seed(0)
    trainer = trainer_class(
        model=str(POLICY),
        reward_funcs=right,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(folder), per_device_train_batch_size=16, num_generations=4,
            max_completion_length=48, max_steps=2, logging_steps=1, beta=0.0, report_to="none",
            save_strategy="no", use_cpu=True, bf16=False, seed=0, learning_rate=1e-3, **options,
        ),
    )  # fmt: skip
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@needs_trl
def test_uniform_is_the_stock_trainer_to_the_last_bit(tmp_path):
    from trl import GRPOTrainer

    stock, weights = trained(GRPOTrainer, tmp_path / "stock")
    ours, same = trained(credit_trainer("uniform"), tmp_path / "ours")
    assert ours == stock
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


@needs_trl
@pytest.mark.parametrize("rule", ["cscr", "cscr_surprisal", "diff_alignment", "otb"])
def test_another_rule_trains_and_moves_the_weights_elsewhere(tmp_path, rule):
    from trl import GRPOTrainer

    _, weights = trained(GRPOTrainer, tmp_path / "stock")
    losses, others = trained(credit_trainer(rule, told=TOLD), tmp_path / "ours")
    assert np.isfinite(losses).all()
    assert any(not torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@needs_trl
def test_groups_rewards_and_ids_are_those_that_trl_has(tmp_path):
    seen = []

    def caught(evidence):
        seen.append(evidence)
        return evidence.spread()

    needs = frozenset({"group", "reward", "token_id"})
    rule = Credit(caught, needs, "replaces", "test", "free", "own")
    trained(credit_trainer(rule), tmp_path)
    assert len(seen) == 2
    for evidence in seen:
        assert evidence.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
        reward = evidence.reward.view(4, 4)
        # TRL's advantages from the same rewards: mean off, deviation + 1e-4.
        spread = reward.std(dim=1, keepdim=True) + 1e-4
        expected = (reward - reward.mean(dim=1, keepdim=True)) / spread
        torch.testing.assert_close(evidence.advantage, expected.flatten(), atol=1e-6, rtol=1e-5)
        assert len(evidence.token_id) == int(evidence.length.sum())
    assert any(evidence.reward.any() for evidence in seen)


@needs_trl
def test_ratios_of_whole_sequences_are_refused(tmp_path):
    with pytest.raises(SchemaError, match="importance_sampling_level='token'"):
        trained(
            credit_trainer("uniform"), tmp_path, importance_sampling_level="sequence",
            loss_type="grpo",
        )  # fmt: skip


@pytest.mark.skipif(HAS_TRL, reason="TRL is installed")
def test_without_trl_the_message_says_what_brings_it():
    with pytest.raises(MissingExtraError, match="peers"):
        credit_trainer("uniform")


def test_rules_whose_evidence_cannot_be_had_are_refused_before_anything_starts():
    with pytest.raises(SchemaError, match=r"\['z_neg'\]"):
        credit_trainer("cscr", told={"z_pos": "x"})
    with pytest.raises(SchemaError, match="one of"):
        credit_trainer("nothing")


def batch_of(policy, questions):
    """A batch as TRL lays it out: prompts padded on the left, completions on the right."""
    prompts = [policy.render(question) for question in questions]
    completions = [policy.encode("1 + 1 = 2"), policy.encode("2 = 2 ;")[:3]]
    wide, long = max(map(len, prompts)), max(map(len, completions))
    batch = {
        "prompt_ids": torch.zeros(2, wide, dtype=torch.long),
        "prompt_mask": torch.zeros(2, wide, dtype=torch.long),
        "completion_ids": torch.zeros(2, long, dtype=torch.long),
        "completion_mask": torch.zeros(2, long, dtype=torch.long),
        "advantages": torch.tensor([0.8, -1.2]),
    }
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        batch["prompt_ids"][row, wide - len(prompt) :] = torch.tensor(prompt)
        batch["prompt_mask"][row, wide - len(prompt) :] = 1
        batch["completion_ids"][row, : len(completion)] = torch.tensor(completion)
        batch["completion_mask"][row, : len(completion)] = 1
    return batch, prompts, completions


QUESTIONS = [problem.question for problem in PLANTED["arithmetic"].problems(2, 3)]
ASKED = [[{"role": "user", "content": question}] for question in QUESTIONS]


def test_weights_are_those_of_our_own_scorer():
    policy = load_policy("tiny:mixed")
    batch, prompts, completions = batch_of(policy, QUESTIONS)
    found = batch_credit(CATALOGUE["cscr"], batch, policy=policy, prompts=ASKED, told=TOLD)
    base = [
        s.logp
        for s in score(
            policy, [Branch(tuple(p), tuple(c)) for p, c in zip(prompts, completions, strict=True)]
        )
    ]
    shifts = {}
    for name, text in TOLD.items():
        told = [tuple(policy.render(question, insert=text)) for question in QUESTIONS]
        moved = score(policy, [Branch(t, tuple(c)) for t, c in zip(told, completions, strict=True)])
        shifts[name] = np.concatenate([m.logp - b for m, b in zip(moved, base, strict=True)])
    expected = CATALOGUE["cscr"].assign(
        Evidence(
            length=np.array([len(c) for c in completions]),
            advantage=batch["advantages"].numpy(),
            **shifts,
        )
    )
    mask = batch["completion_mask"].bool()
    np.testing.assert_allclose(found[mask], expected, atol=1e-6)
    assert (found[~mask] == 0).all()
    assert np.ptp(np.abs(expected[: len(completions[0])])) > 1e-4  # so that an error would show


def test_prompts_that_we_would_render_otherwise_are_refused():
    policy = load_policy("tiny:mixed")
    batch, *_ = batch_of(policy, QUESTIONS)
    for prompts, message in (
        (["plain", "text"], "one user message"),
        (ASKED[::-1], "those that we render"),
    ):
        with pytest.raises(PolicyError, match=message):
            batch_credit(CATALOGUE["cscr"], batch, policy=policy, prompts=prompts, told=TOLD)


def test_group_reward_and_ids_reach_the_rule():
    policy = load_policy("tiny:mixed")
    batch, _, completions = batch_of(policy, QUESTIONS)
    known = {"group": torch.tensor([0, 0]), "reward": torch.tensor([1.0, 0.0])}
    given = {"policy": policy, "prompts": ASKED, "told": {}}
    mask = batch["completion_mask"].bool()
    flat = {
        "length": np.array([len(c) for c in completions]),
        "advantage": batch["advantages"].numpy(),
        "group": known["group"].numpy(),
        "token_id": np.concatenate(completions),
    }
    found = batch_credit(CATALOGUE["position_alignment"], batch, known=known, **given)
    expected = CATALOGUE["position_alignment"].assign(Evidence(**flat))
    np.testing.assert_allclose(found[mask], expected, atol=1e-6)
    assert np.ptp(np.abs(expected)) > 0.1  # so that an error would show
    with pytest.raises(SchemaError, match="`group`"):
        batch_credit(CATALOGUE["position_alignment"], batch, **given)
    undecided = known | {"reward": torch.tensor([1.0, torch.nan])}
    with pytest.raises(SchemaError, match="`reward` needs finite"):
        batch_credit(CATALOGUE["lampo"], batch, known=undecided, **given)


def test_tool_tokens_get_nothing():
    policy = load_policy("tiny:mixed")
    batch, *_ = batch_of(policy, QUESTIONS)
    batch["tool_mask"] = batch["completion_mask"].clone()
    batch["tool_mask"][0, 1] = 0
    found = batch_credit(CATALOGUE["uniform"], batch, policy=policy, prompts=ASKED, told={})
    assert found[0, 1] == 0
