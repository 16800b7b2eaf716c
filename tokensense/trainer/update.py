"""One or more optimizer steps on the credit of a batch.

Reads  a policy in float32 (or whatever it is in), a lesson.
Gives  update, which changes the weights; accumulate, which adds up gradients.
Sign   credit positive: the token is made likelier.

Each token brings its share of the loss, so that the gradients of the passes add up to that of the
whole update. Rollouts whose credit is 0 everywhere are not fed where there is neither KL nor
teacher: their gradient is exactly 0. An update in which nothing is fed makes no optimizer step, so
that momentum alone moves nothing.

The model stays in evaluation mode: dropout would make the ratio of the first update differ from 1.

Source: as `loss` and `distillation`.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import torch
from jaxtyping import Int64

from tokensense.models.head import head_of, log_statistics
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.recomputing import recomputed
from tokensense.models.scorer import evaluation
from tokensense.segments import segment_max
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.distillation import divergences
from tokensense.trainer.lesson import Lesson, hidden_states
from tokensense.trainer.loss import token_shares, token_terms
from tokensense.trainer.parallel import joined

SUMS = ("loss", "ratio", "clip_low", "clip_high", "kl", "kl_cut", "fed_tokens")


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    lesson: Lesson,
    *,
    config: TrainConfig,
    seed: int,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """Take the optimizer steps of one training step.

    Args:
        policy: whose weights change.
        optimizer: over its parameters.
        lesson: what is learned from.
        config: epochs, updates, objective.
        seed: of the order in which rollouts are taken, where there are several updates.
        processes: that feed a share of the rollouts each, and all make the same steps.

    Returns:
        loss and gradient_norm (means over updates, the norm before it is cut), ratio, clip_low,
        clip_high, kl, kl_cut (means over the tokens fed), fed_tokens, updates. NaN: nothing was
        fed.

    Raises:
        PolicyError: checkpointing is asked for, and the model has no layers for it.
        ProcessError: another process has ended.
    """
    totals = dict.fromkeys(("gradient_norm", "updates", *SUMS), 0.0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = recomputed(policy.model) if config.checkpointing else nullcontext()
    with evaluation(policy.model), kept:
        for part in _parts(lesson, config, seed=seed):
            optimizer.zero_grad(set_to_none=True)
            own = accumulate(policy, part, config, processes=processes)
            sums = joined(own, parameters, processes)
            if sums["fed_tokens"]:
                norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_norm)
                sums |= {"gradient_norm": float(norm), "updates": 1.0}
                optimizer.step()
            totals |= {name: totals[name] + value for name, value in sums.items()}
    counts = {name: totals.pop(name) for name in ("fed_tokens", "updates")}
    each = {"loss": counts["updates"], "gradient_norm": counts["updates"]}
    return counts | {
        name: total / each.get(name, counts["fed_tokens"]) if counts["updates"] else math.nan
        for name, total in totals.items()
    }


def accumulate(
    policy: Policy, lesson: Lesson, config: TrainConfig, *, processes: Processes = ALONE
) -> dict[str, float]:
    """Add the gradient of one update to the parameters', some rollouts at a time.

    Args:
        policy: whose parameters get gradients.
        lesson: all rollouts of the update.
        config: objective, size of a row.
        processes: of which this one adds its own share.

    Returns:
        loss: of the update. Sums over the tokens fed: ratio, clip_low, clip_high, kl, kl_cut,
        fed_tokens.
    """
    shares = token_shares(lesson.length, config.objective, most=config.max_new_tokens)
    places = _with_gradient(lesson, config)
    fed, own = lesson.part(places), shares[lesson.tokens(places)]
    sums = dict.fromkeys(SUMS, 0.0)
    head = head_of(policy.model)
    for row, hidden in hidden_states(policy, fed.branches, config, processes=processes):
        slots, targets = row.slots, torch.from_numpy(row.targets).to(policy.device)
        statistics = log_statistics(hidden, targets, head, temperature=config.temperature)
        credit, share, old, reference = (
            None if values is None else torch.from_numpy(values[slots]).float().to(policy.device)
            for values in (fed.credit, own, fed.old, fed.reference)
        )
        assert credit is not None
        assert share is not None
        terms = token_terms(
            statistics.logp,
            credit=credit,
            objective=config.objective,
            old=old,
            reference=reference,
        )
        each = terms.loss
        if fed.teacher is not None:
            told = fed.teacher.at(torch.from_numpy(slots))
            each = each + divergences(hidden, head, told, temperature=config.temperature)
        loss = (share * each).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        of_tokens = (terms.ratio, terms.clipped_low, terms.clipped_high, terms.kl, terms.kl_cut)
        values = (loss.item(), *(part.sum().item() for part in of_tokens), len(slots))
        sums = {name: sums[name] + value for name, value in zip(SUMS, values, strict=True)}
    return sums


def _with_gradient(lesson: Lesson, config: TrainConfig) -> Int64[np.ndarray, " part"]:
    """Rollouts whose gradient is not 0 by their credit alone."""
    if config.objective.kl != "none" or lesson.teacher is not None:
        return np.arange(len(lesson.branches))
    size = segment_max(np.abs(lesson.credit), lesson.length)
    return np.flatnonzero(size > 0)


def _parts(lesson: Lesson, config: TrainConfig, *, seed: int) -> Iterator[Lesson]:
    """The rollouts of each optimizer step; one step takes them all, as they are."""
    count = len(lesson.branches)
    if config.epochs == config.updates == 1:
        yield lesson
        return
    generator = np.random.default_rng(seed)
    for _ in range(config.epochs):
        for rollouts in np.array_split(generator.permutation(count), config.updates):
            if len(rollouts):
                yield lesson.part(np.sort(rollouts))
