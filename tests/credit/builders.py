"""Made-up evidence: any lengths, ties, in either array library."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tokensense.credit.base import PER_ROLLOUT, Evidence

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}


def arrays(length: list[int], *, seed: int = 0, ties: bool = False) -> dict[str, np.ndarray]:
    """All evidence but the mask; with ties, every number is a multiple of a quarter."""
    rng = np.random.default_rng(seed)
    tokens = sum(length)
    logp = -rng.exponential(1.0, tokens)
    found = {
        "logp": logp,
        "entropy": rng.exponential(1.0, tokens),
        "distance": np.sqrt(1 + rng.random(tokens)) * -np.expm1(logp),
        **{
            name: rng.standard_t(2, tokens) / 3
            for name in ("z_pos", "z_neg", "placebo_pos", "placebo_neg")
        },
    }
    if ties:
        found = {name: np.round(4 * array) / 4 for name, array in found.items()}
    signs = rng.choice([-1.0, 0.0, 1.0], len(length))
    return {
        **found,
        "length": np.array(length, dtype=np.int64),
        "advantage": signs * rng.exponential(1.0, len(length)),
        "key": rng.permutation(len(length)),
    }


def evidence(found: dict[str, Any], library: str = "numpy") -> Evidence:
    return Evidence(**{name: LIBRARIES[library](array) for name, array in found.items()})


def by_rollout(found: dict[str, np.ndarray], order: list[int]) -> dict[str, np.ndarray]:
    """The same rollouts in another order."""
    starts = np.cumsum(found["length"]) - found["length"]
    tokens = [np.arange(starts[r], starts[r] + found["length"][r]) for r in order]
    index = np.concatenate([np.empty(0, np.int64), *tokens])
    return {name: array[order if name in PER_ROLLOUT else index] for name, array in found.items()}


@st.composite
def made_up(draw: st.DrawFn, *, least: int = 0) -> dict[str, np.ndarray]:
    """Draw up to five rollouts of 0 to 9 tokens; half of the time with ties."""
    length = draw(st.lists(st.sampled_from([0, 1, 1, 2, 5, 9]), min_size=least, max_size=5))
    return arrays(length, seed=draw(st.integers(0, 10_000)), ties=draw(st.booleans()))


NAMES = {field.name for field in fields(Evidence)}
