"""Made-up evidence: any lengths, ties, in either array library."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tests.reference import credit as slow
from tokensense.credit.evidence import PER_ROLLOUT, VECTORS, Evidence

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}


SHIFTS = (
    *("z_pos", "z_neg", "placebo_pos", "placebo_neg", "answer_pos", "answer_neg"),
    *("sibling_pos", "sibling_neg", "negative_prompt", "reference", "rubric"),
    *("teacher", "teacher_pos", "teacher_neg", "drift", "learning_value"),
    *("right_influence", "value_gain"),
)
POSITIVE = ("entropy", "answer_kl", "answer_saliency")


def arrays(length: list[int], *, seed: int = 0, ties: bool = False) -> dict[str, np.ndarray]:
    """All evidence but the mask; with ties, every number is a multiple of a quarter.

    The advantage is the reward less the mean of its group, so that sides and groups fit together.
    """
    rng = np.random.default_rng(seed)
    tokens = sum(length)
    logp = -rng.exponential(1.0, tokens)
    found = {
        "logp": logp,
        "distance": np.sqrt(1 + rng.random(tokens)) * -np.expm1(logp),
        "hellinger": rng.random(tokens),
        "ratio": np.exp(rng.normal(0, 0.3, tokens)),
        "span_drop": rng.normal(0, 1, tokens) * (rng.random(tokens) < 0.5),
        **{name: rng.exponential(1.0, tokens) for name in POSITIVE},
        **{name: rng.standard_t(2, tokens) / 3 for name in SHIFTS},
        **{name: rng.normal(0.3, 1.0, (tokens, 3)) for name in sorted(VECTORS)},
    }
    if ties:
        found = {name: np.round(4 * array) / 4 for name, array in found.items()}
    group = rng.integers(0, 2, len(length))
    reward = rng.integers(0, 2, len(length)).astype(np.float64)
    # Not by the package: its checked calls draw random numbers, which strategies must not.
    told = reward.tolist(), group.tolist()
    return {
        **found,
        "planted": rng.random(tokens) < 0.3,
        "step": np.concatenate(
            [np.empty(0, np.int64), *(np.sort(rng.integers(-1, 3, n)) for n in length)]
        ),
        "token_id": rng.integers(0, 4, tokens),
        "length": np.array(length, dtype=np.int64),
        "group": group,
        "reward": reward,
        "advantage": np.array(slow.advantage(*told, "group_std", eps=1e-4, ddof=1), np.float64),
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
