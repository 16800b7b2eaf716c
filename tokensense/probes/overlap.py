"""Do two opposed conditions give one and the same signal over the whole vocabulary?

Reads  problems of a store, a Policy, pairs of conditions.
Gives  overlaps: for each pair and response token the cosine of p+ - p0 and p- - p0, and the share
       of the moved probability that both move the same way.
Sign   cosine 1: both conditions change the distribution alike, -1: they undo each other.

Exact, over every token of the vocabulary (the published finding F3 is about "overlap at the level
of sampled tokens and of the full vocabulary"; arXiv:2607.27888, second-hand). The issue's top-200
with a tail would have been an approximation for no gain: hidden states are held for one rollout,
(1 + 2 pairs) x tokens x hidden floats, and three heads are run over each, twice.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tokensense.models.distribution import signal_overlap
from tokensense.models.head import head_of
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import read_rows
from tokensense.probes.conditions import BASE_CONDITION, Condition
from tokensense.probes.contexts import Problems, prompts

# Below it both distributions agree to float32, and a direction means nothing.
SMALLEST = 1e-12


def overlaps(
    policy: Policy,
    problems: Problems,
    pairs: Sequence[tuple[Condition, Condition]],
    *,
    rollouts: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> xr.Dataset:
    """Overlap of the two changes of each pair, at every response token.

    Args:
        policy: scores.
        problems: see `contexts.read_problems`.
        pairs: `pos` and `neg`; texts that need what is not known give NaN.
        rollouts: places in the store, ascending.
        progress: called with the tokens done since the last call, conditions together.

    Returns:
        `cosine` and `shared` (pair, token), no unit, NaN where a condition moved nothing or could
        not be scored; coordinates `pos` and `neg` (pair), `rollout` (token).
    """
    cosine, shared, owners = [], [], []
    for index, (start, end) in enumerate(problems.groups):
        for rollout in (i for i in rollouts if start <= i < end and problems.responses[i]):
            response = problems.responses[rollout]
            found = np.full((2, len(pairs), len(response)), np.nan, np.float32)
            for place, pair in enumerate(pairs):
                asked = prompts(problems, index, (BASE_CONDITION, *pair), encoder=policy)
                if all(prompt.ids for prompt in asked):
                    branches = [Branch(prompt.ids, response) for prompt in asked]
                    found[:, place] = _compared(policy, branches)
                if progress is not None:
                    progress(3 * len(response))
            cosine.append(found[0])
            shared.append(found[1])
            owners += [rollout] * len(response)
    names = [[condition.name for condition in side] for side in zip(*pairs, strict=True)]
    about = {"units": "1", "sign": "1: both conditions change the distribution alike"}
    return xr.Dataset(
        {
            "cosine": (("pair", "token"), np.concatenate(cosine, 1), about),
            "shared": (("pair", "token"), np.concatenate(shared, 1), about),
        },
        coords={
            "pos": ("pair", names[0]),
            "neg": ("pair", names[1]),
            "rollout": ("token", np.array(owners, np.int64)),
        },
    )


def _compared(policy: Policy, branches: Sequence[Branch]) -> np.ndarray:
    """Cosine and shared of one rollout under base, pos and neg; (2, token)."""
    states: list[Tensor] = [torch.empty(0)] * sum(len(branch.response) for branch in branches)
    for slots, hidden in read_rows(policy, branches, lambda hidden, _: hidden):
        for slot, state in zip(slots.tolist(), hidden, strict=True):
            states[slot] = state
    with torch.inference_mode():
        base, pos, neg = torch.stack(states).to(policy.device).chunk(3)
        found = signal_overlap((base, pos, neg), head_of(policy.model))
        size = (found.squares_1 * found.squares_2).sqrt()
        cosine = torch.where(size > SMALLEST, found.dot / size, torch.nan)
        shared = torch.where(size > SMALLEST, found.common / found.either, torch.nan)
    return torch.stack([cosine, shared]).cpu().numpy()
