"""One or more optimizer steps on the credit of a batch.

Reads  a policy in float32 (or whatever it is in), branches, credit of every token.
Gives  update, which changes the weights; log_probs, the same forward pass without gradient.
Sign   credit positive: the token is made likelier.

Rollouts are fed padded on the right, some at a time; each token brings its share of the loss, so
that the gradients of the passes add up to that of the whole update. Rollouts whose credit is 0
everywhere are not fed where there is no KL: their gradient is exactly 0. An update in which nothing
is fed makes no optimizer step, so that momentum alone moves nothing.

The model stays in evaluation mode: dropout would make the ratio of the first update differ from 1.

Source: as `loss`; hidden states and head are the scorer's (`selfcheck.hidden_rows`, `head`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from tokensense.models.head import LogStatistics, head_of, log_statistics
from tokensense.models.plan import Branch, plan_padded
from tokensense.models.policy import Policy
from tokensense.models.scorer import evaluation
from tokensense.models.selfcheck import hidden_rows
from tokensense.segments import offsets, segment_max
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.loss import token_shares, token_terms

Flat = Float32[np.ndarray, " token"]
SUMS = ("loss", "ratio", "clip_low", "clip_high", "kl", "kl_cut", "fed_tokens")


class Lesson(NamedTuple):
    """What an update learns from.

    Attributes:
        branches: prompt and response of each rollout.
        credit: of every response token, back to back.
        old: logp of every token when it was sampled, nats; None where there is one update only.
        reference: logp of every token under the policy that the run began from; None without KL.
    """

    branches: Sequence[Branch]
    credit: Float64[np.ndarray, " token"]
    old: Flat | None = None
    reference: Flat | None = None

    @property
    def length(self) -> Int64[np.ndarray, " rollout"]:
        """Tokens of each rollout."""
        return np.array([len(branch.response) for branch in self.branches], dtype=np.int64)

    def tokens(self, rollouts: Int64[np.ndarray, " part"]) -> Int64[np.ndarray, " token"]:
        """Places of the tokens of some rollouts, in the order given."""
        bound = offsets(self.length)
        runs = (np.arange(bound[i], bound[i + 1]) for i in rollouts)
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def part(self, rollouts: Int64[np.ndarray, " part"]) -> "Lesson":
        """Some of the rollouts, in the order given."""
        own = self.tokens(rollouts)
        return Lesson(
            [self.branches[i] for i in rollouts.tolist()],
            self.credit[own],
            None if self.old is None else self.old[own],
            None if self.reference is None else self.reference[own],
        )


def log_probs(policy: Policy, branches: Sequence[Branch], config: TrainConfig) -> Flat:
    """Log-probability of every response token by the trainer's own forward pass, nats.

    Args:
        policy: scores.
        branches: prompts and responses.
        config: temperature and size of a row.
    """
    found = np.zeros(sum(len(branch.response) for branch in branches), dtype=np.float32)
    with torch.no_grad():
        for slots, statistics in _passes(policy, branches, config):
            found[slots] = statistics.logp.cpu().numpy()
    return found


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    lesson: Lesson,
    *,
    config: TrainConfig,
    seed: int,
) -> dict[str, float]:
    """Take the optimizer steps of one training step.

    Args:
        policy: whose weights change.
        optimizer: over its parameters.
        lesson: what is learned from.
        config: epochs, updates, objective.
        seed: of the order in which rollouts are taken, where there are several updates.

    Returns:
        loss and gradient_norm (means over updates, the norm before it is cut), ratio, clip_low,
        clip_high, kl, kl_cut (means over the tokens fed), fed_tokens, updates. NaN: nothing was
        fed.
    """
    totals = dict.fromkeys(("gradient_norm", "updates", *SUMS), 0.0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with evaluation(policy.model):
        for part in _parts(lesson, config, seed=seed):
            optimizer.zero_grad(set_to_none=True)
            sums = accumulate(policy, part, config)
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


def accumulate(policy: Policy, lesson: Lesson, config: TrainConfig) -> dict[str, float]:
    """Add the gradient of one update to the parameters', some rollouts at a time.

    Args:
        policy: whose parameters get gradients.
        lesson: all rollouts of the update.
        config: objective, size of a row.

    Returns:
        loss: of the update. Sums over the tokens fed: ratio, clip_low, clip_high, kl, kl_cut,
        fed_tokens.
    """
    shares = token_shares(lesson.length, config.objective, most=config.max_new_tokens)
    places = _with_gradient(lesson, config)
    fed, own = lesson.part(places), shares[lesson.tokens(places)]
    sums = dict.fromkeys(SUMS, 0.0)
    for slots, statistics in _passes(policy, fed.branches, config):
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
        loss = (share * terms.loss).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        of_tokens = (terms.ratio, terms.clipped_low, terms.clipped_high, terms.kl, terms.kl_cut)
        values = (loss.item(), *(part.sum().item() for part in of_tokens), len(slots))
        sums = {name: sums[name] + value for name, value in zip(SUMS, values, strict=True)}
    return sums


def _with_gradient(lesson: Lesson, config: TrainConfig) -> Int64[np.ndarray, " part"]:
    """Rollouts whose gradient is not 0 by their credit alone."""
    if config.objective.kl != "none":
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


def _passes(
    policy: Policy, branches: Sequence[Branch], config: TrainConfig
) -> Iterator[tuple[Int64[np.ndarray, " row"], LogStatistics]]:
    """Statistics of the response tokens, a row of rollouts at a time, and their places."""
    head = head_of(policy.model)
    for stream in plan_padded(branches, tokens_per_row=config.tokens_per_row):
        for row, hidden in hidden_rows(policy.model, stream):
            targets = torch.from_numpy(row.targets).to(policy.device)
            yield (
                row.slots,
                log_statistics(hidden, targets, head, temperature=config.temperature),
            )
