from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.reference.trainer import reference_log_probs, reference_loss
from tokensense.credit import CATALOGUE
from tokensense.credit.evidence import Evidence
from tokensense.trainer.batches import collect
from tokensense.trainer.config import DAPO, DR_GRPO, GRPO, Objective
from tokensense.trainer.lesson import Lesson, log_probs
from tokensense.trainer.problems import planted
from tokensense.trainer.run import own_copy
from tokensense.trainer.update import accumulate, update


@pytest.fixture(scope="module")
def batch(policy, config):
    """Rollouts of unequal length; one group is all right or all wrong."""
    chatty = planted("tables", held_out=0, lookups=3)
    config = replace(config, max_new_tokens=64)
    batches = (collect(policy, chatty, config, step=step) for step in range(20))
    found = next(b for b in batches if 0 < b.uniform_groups < config.problems)
    assert len(set(found.length.tolist())) > 5
    return found


def lesson_of(batch, **parts):
    return Lesson(batch.branches, np.repeat(batch.advantage, batch.length), **parts)


def gradients(policy, lesson, config):
    """Loss, and the gradient of every parameter."""
    copied = own_copy(policy)
    sums = accumulate(copied, lesson, config)
    return sums, {name: p.grad for name, p in copied.model.named_parameters()}


def trained(policy, lesson, config, *, seed=0):
    """Weights after an update by plain gradient descent, and its numbers."""
    copied = own_copy(policy)
    optimizer = torch.optim.SGD(copied.model.parameters(), lr=config.learning_rate)
    numbers = update(copied, optimizer, lesson, config=config, seed=seed)
    return numbers, dict(copied.model.named_parameters())


def assert_close(found, truth, *, rtol=1e-4, atol=1e-7):
    for name, value in truth.items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize(
    "objective",
    [GRPO, DAPO, DR_GRPO, Objective(kl="k3", kl_coefficient=0.3, kl_clamp=0.05)],
    ids=["grpo", "dapo", "dr_grpo", "k3"],
)
def test_loss_and_gradient_are_those_of_the_plain_reference(policy, batch, config, objective):
    # Stale log-probabilities, so that ratios are cut on both sides.
    draw = np.random.default_rng(0)
    now = log_probs(policy, batch.branches, config)
    old = (now + 0.3 * draw.standard_normal(now.size)).astype(np.float32)
    reference = (now + 0.1 * draw.standard_normal(now.size)).astype(np.float32)
    config = replace(config, objective=objective, temperature=0.8, tokens_per_row=64)
    lesson = lesson_of(batch, old=old, reference=reference)
    sums, found = gradients(policy, lesson, config)

    model = own_copy(policy).model
    logps = [reference_log_probs(model, *branch, 0.8) for branch in batch.branches]
    ends = np.cumsum(batch.length)

    def cut(values):
        return [values[e - n : e].tolist() for e, n in zip(ends, batch.length, strict=True)]

    truth = reference_loss(
        logps,
        cut(lesson.credit),
        olds=cut(old),
        references=cut(reference),
        normalizer=objective.normalizer,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        kl=objective.kl,
        kl_coefficient=objective.kl_coefficient,
        kl_clamp=objective.kl_clamp,
        most=config.max_new_tokens,
    )
    truth.backward()
    assert sums["loss"] == pytest.approx(truth.item(), rel=1e-4, abs=1e-6)
    assert sums["clip_low"] > 0
    assert sums["clip_high"] > 0
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    assert_close(found, {n: p.grad for n, p in model.named_parameters()}, atol=1e-5 * largest)


def test_how_an_update_is_cut_into_passes_changes_neither_loss_nor_gradient(policy, batch, config):
    lesson = lesson_of(batch)
    whole, found = gradients(policy, lesson, replace(config, tokens_per_row=2**16))
    largest = max(float(g.abs().max()) for g in found.values())
    for size in (1, 100):
        sums, parts = gradients(policy, lesson, replace(config, tokens_per_row=size))
        assert sums == pytest.approx(whole, rel=1e-5, abs=1e-6)
        assert_close(parts, found, rtol=1e-4, atol=1e-5 * largest)


def test_layers_that_run_again_change_nothing(policy, batch, config):
    lesson = lesson_of(batch)
    numbers, found = trained(policy, lesson, config)
    again, same = trained(policy, lesson, replace(config, checkpointing=True))
    assert again == numbers
    assert all(torch.equal(same[name], value) for name, value in found.items())


def test_uniform_is_plain_grpo_bit_for_bit(policy, batch, config):
    evidence = Evidence(length=batch.length, advantage=batch.advantage)
    uniform = CATALOGUE["uniform"].assign(evidence)
    _, ours = trained(policy, Lesson(batch.branches, uniform), config)
    _, plain = trained(policy, lesson_of(batch), config)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_rollouts_without_credit_are_not_fed_and_that_changes_nothing(policy, batch, config):
    lesson = lesson_of(batch)
    sums, found = gradients(policy, lesson, config)
    active = int(batch.length[batch.advantage != 0].sum())
    assert sums["fed_tokens"] == active < batch.length.sum()
    # A credit of next to nothing feeds them all.
    nearly = np.where(lesson.credit == 0, 1e-30, lesson.credit)
    fed, truth = gradients(policy, Lesson(batch.branches, nearly), config)
    assert fed["fed_tokens"] == batch.length.sum()
    largest = max(float(g.abs().max()) for g in truth.values())
    assert_close(found, truth, atol=1e-5 * largest)


def test_where_nothing_is_fed_no_step_is_made(policy, batch, config):
    copied = own_copy(policy)
    optimizer = torch.optim.AdamW(copied.model.parameters(), lr=0.1, weight_decay=0.0)
    update(copied, optimizer, lesson_of(batch), config=config, seed=0)
    before = {name: p.clone() for name, p in copied.model.named_parameters()}
    nothing = Lesson(batch.branches, np.zeros(int(batch.length.sum())))
    numbers = update(copied, optimizer, nothing, config=config, seed=0)
    assert numbers["updates"] == numbers["fed_tokens"] == 0
    assert np.isnan(numbers["loss"])
    assert all(torch.equal(before[n], p) for n, p in copied.model.named_parameters())


def test_a_second_pass_sees_the_ratios_of_the_first(policy, batch, config):
    config = replace(config, epochs=2, learning_rate=1.0)
    old = log_probs(policy, batch.branches, config)
    lesson = lesson_of(batch, old=old)
    numbers, twice = trained(policy, lesson, config)
    assert numbers["updates"] == 2
    assert abs(numbers["ratio"] - 1) > 1e-4
    # By hand: two updates, the second on what the first has left, against the same old ones.
    copied = own_copy(policy)
    optimizer = torch.optim.SGD(copied.model.parameters(), lr=config.learning_rate)
    once = replace(config, epochs=1)
    for _ in range(2):
        update(copied, optimizer, lesson, config=once, seed=0)
    assert all(torch.equal(twice[n], p) for n, p in copied.model.named_parameters())


def test_several_updates_share_the_rollouts_out(policy, batch, config):
    config = replace(config, updates=3)
    lesson = lesson_of(batch, old=log_probs(policy, batch.branches, config))
    numbers, one = trained(policy, lesson, config, seed=1)
    assert numbers["fed_tokens"] == batch.length[batch.advantage != 0].sum()
    _, same = trained(policy, lesson, config, seed=1)
    _, other = trained(policy, lesson, config, seed=2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_long_gradients_are_shortened_and_their_length_is_told(policy, batch, config):
    lesson, config = lesson_of(batch), replace(config, learning_rate=1.0)
    plain, free = trained(policy, lesson, config)
    cut, short = trained(policy, lesson, replace(config, max_norm=plain["gradient_norm"] / 2))
    assert cut["gradient_norm"] == plain["gradient_norm"]
    start = dict(policy.model.named_parameters())
    for name, value in start.items():
        torch.testing.assert_close(
            short[name] - value, (free[name] - value) / 2, rtol=1e-2, atol=1e-6
        )
