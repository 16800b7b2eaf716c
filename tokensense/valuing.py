"""Learning values of a store: what learning from each token does for the reward on other problems.

Reads  a Study (rollouts, base), the policy that scored it.
Gives  learning_values: `/stats/learning_value`, a number a token; rules that need it and the token
       view read it there.
Sign   positive: a step that makes the token likelier goes where other problems' rewards lie.

Problem texts are dealt at random into two halves. G of a half is the policy gradient of its
rollouts, the mean over tokens of A grad log p; a token's value is the inner product of its gradient
with G of the half that its problem is not in. How far both G agree is kept beside: their noise
bounds what a value says. Values with exact G, and rules ranked by them: `studies.learning_value`.

Where another policy wrote the traces, G is no policy gradient but that of imitating the better of
given solutions; the Dataset says `off_policy`.

Cost: 7 forward passes of all tokens (`probes.gradients`); two gradients of all parameters are held.
Nothing is kept of a call that is interrupted.

Source: methods/statistics.md, "Three measurements" A.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64, Int64
from torch import Tensor
from tqdm import tqdm

from tokensense.centering import branches_of, scored_by, usable_rollouts
from tokensense.checks import require_member
from tokensense.credit.advantages import ADVANTAGES
from tokensense.errors import StatisticsError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.probes.gradients import inner_products, pooled_gradients
from tokensense.segments import broadcast

if TYPE_CHECKING:
    from tokensense.study import Study

NAME = "learning_value"
# Tokens between two looks of the progress bar; a multiple of a row of `probes.gradients`.
AT_ONCE = 8192


def learning_values(
    study: "Study",
    policy: Policy,
    *,
    advantage: str = "group_std",
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Measure the learning value of every token and keep it in the store.

    Args:
        study: with rollouts and a finished base probe; some groups with right and wrong responses.
        policy: that scored it.
        advantage: as for `assign_credit`.
        seed: of the two halves.
        progress: show a bar of tokens with rate and time left.

    Returns:
        `learning_value` (token), <grad log p(token), G>, nats per unit of G; NaN for tokens of
        rollouts without a reward, or that the base could not score. Attributes: `halves_cosine` of
        the two G, `halves_norm`, `n_tokens`, `n_problems`, `off_policy`.

    Raises:
        StoreError: there is no base, another policy made it, or the store cannot be written.
        StatisticsError: a half has no group with right and wrong responses.
        PolicyError: a rollout cannot be scored by the policy.
        SchemaError: `advantage` is not known.
    """
    require_member("advantage", advantage, ADVANTAGES)
    archive = study.archive()
    rollouts = archive.rollouts()
    tokens = scored_by(policy, archive)
    kept = usable_rollouts(tokens, rollouts)
    problem = rollouts["problem_of"].values.astype(np.int64)[kept]
    branches = branches_of(rollouts, np.flatnonzero(kept))
    length = np.array([len(branch.response) for branch in branches], dtype=np.int64)
    spread = ADVANTAGES[advantage](rollouts["reward"].values.astype(np.float64)[kept], problem)
    side = _sides(rollouts["cluster"].values[problem], seed=seed)
    bar = tqdm(total=2 * int(length.sum()), unit="tok", unit_scale=True, disable=not progress)
    with bar:
        gradient = torch.stack([
            _gradient(policy, branches, np.where(side == half, spread, 0.0), bar=bar)
            for half in (0, 1)
        ])  # fmt: skip
        values = _products(policy, branches, gradient, side, bar=bar)
    everywhere = np.full(int(rollouts["length"].sum()), np.nan)
    everywhere[broadcast(kept, rollouts["length"].values.astype(np.int64))] = values
    one, other = gradient.double()
    facts = {
        "halves_cosine": float(torch.cosine_similarity(one, other, dim=0)),
        "halves_norm": [float(one.norm()), float(other.norm())],
        "n_tokens": int(length.sum()),
        "n_problems": int(np.unique(problem).size),
        "advantage": advantage,
        "seed": seed,
    }
    found = xr.Dataset({NAME: ("token", everywhere)}, attrs={**tokens.attrs, **facts})
    with archive:
        archive.write_nodes({f"/stats/{NAME}": found})
    return found


def _sides(cluster: np.ndarray, *, seed: int) -> Int64[np.ndarray, " rollout"]:
    """0 or 1 for each rollout, the same for all of a problem text; as many texts on both sides."""
    _, place = np.unique(cluster, return_inverse=True)
    count = int(place.max()) + 1 if place.size else 0
    half = np.random.default_rng(seed).permutation(count) % 2
    return np.asarray(half[place], dtype=np.int64)


def _gradient(
    policy: Policy,
    branches: list[Branch],
    advantage: Float64[np.ndarray, " rollout"],
    *,
    bar: "tqdm[Any]",
) -> Tensor:
    """Mean over tokens of A grad log p, of the rollouts whose advantage is not 0."""
    chosen = np.flatnonzero(advantage)
    if not chosen.size:
        raise StatisticsError(
            "learning values need groups with right and wrong responses in both halves of the "
            "problems; one half has none. Import or sample more responses to each problem."
        )
    tokens = sum(len(branches[rollout].response) for rollout in chosen.tolist())
    total: Tensor | None = None
    for part in _parts(branches, chosen):
        own = [branches[rollout] for rollout in part]
        weights = np.repeat(advantage[part], [len(branch.response) for branch in own]) / tokens
        (found,) = pooled_gradients(policy, own, weights[None])
        total = found if total is None else total + found
        bar.update(weights.size)
    assert total is not None
    return total


def _products(
    policy: Policy,
    branches: list[Branch],
    gradient: Tensor,
    side: Int64[np.ndarray, " rollout"],
    *,
    bar: "tqdm[Any]",
) -> Float64[np.ndarray, " token"]:
    """Of every token with the gradient of the other half, rollouts in their order."""
    found: dict[int, np.ndarray] = {}
    for half in (0, 1):
        for part in _parts(branches, np.flatnonzero(side == half)):
            own = [branches[rollout] for rollout in part]
            (values,) = inner_products(policy, own, gradient[1 - half][None])
            edges = np.cumsum([len(branch.response) for branch in own])[:-1]
            found |= dict(zip(part, np.split(values, edges), strict=True))
            bar.update(values.size)
    return np.concatenate([np.zeros(0), *(found[rollout] for rollout in range(len(branches)))])


def _parts(branches: list[Branch], chosen: np.ndarray) -> list[list[int]]:
    """Rollouts in pieces of some AT_ONCE tokens."""
    length = np.array([len(branches[rollout].response) for rollout in chosen.tolist()], np.int64)
    piece = (np.cumsum(length) - length) // AT_ONCE
    return [chosen[piece == number].tolist() for number in np.unique(piece)]
