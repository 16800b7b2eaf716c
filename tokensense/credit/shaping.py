"""What several credit rules do to a score on its way to a weight.

Reads  scores (token), any unit; lengths.
Gives  mean_one, softmax, clipped, quantile_of_all, drawn.
Sign   order is kept: a larger score never gets the smaller weight.
"""

from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Bool, Float64, Integer

from tokensense.credit.evidence import Evidence
from tokensense.segments import (
    broadcast,
    segment_max,
    segment_normalize,
    segment_quantile,
    segment_sum,
)

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`


def mean_one(
    score: Float64[Array, " token"], length: Integer[Array, " rollout"]
) -> Float64[Array, " token"]:
    """Scale to mean 1 over each rollout, no unit; 1 for every token of a rollout of zeros.

    Args:
        score: >= 0, any unit.
        length: tokens per rollout.
    """
    xp = array_namespace(score)
    nothing = broadcast(segment_sum(score, length), length) <= 0
    return segment_normalize(xp.where(nothing, xp.ones_like(score), score), length)


def softmax(
    score: Float64[Array, " token"], length: Integer[Array, " rollout"]
) -> Float64[Array, " token"]:
    """T exp(score) / sum of exp(score) over the T tokens of each rollout, no unit.

    Args:
        score: no unit; equal scores, infinite sums among them, give exactly 1.
        length: tokens per rollout.
    """
    xp = array_namespace(score)
    top = broadcast(segment_max(score, length), length)
    return segment_normalize(xp.exp(score - top), length)


def clipped(values: Float64[Array, " n"], low: float, high: float) -> Float64[Array, " n"]:
    """Values no smaller than `low` and no larger than `high`, in their unit.

    Args:
        values: any.
        low: smallest result.
        high: largest result.
    """
    xp = array_namespace(values)
    return xp.clip(values, low, high)


def quantile_of_all(values: Float64[Array, " token"], q: float) -> float | Array:
    """The q-quantile of all values together, linear between two of them; NaN of none.

    Args:
        values: any unit.
        q: in [0, 1].
    """
    return segment_quantile(values, np.array([values.shape[0]]), q=q)


def top_of(
    score: Float64[Array, " token"], among: Bool[Array, " token"], *, share: float
) -> Bool[Array, " token"]:
    """Which of some tokens score at or above their (1 - share)-quantile.

    Args:
        score: of every token, any unit.
        among: the tokens that take part.
        share: of them, in [0, 1]; with ties more are chosen, with 0 the highest.
    """
    xp = array_namespace(score)
    chosen = xp.zeros_like(among)
    if bool(xp.any(among)):
        chosen = among & (score >= quantile_of_all(score[among], 1.0 - share))
    return chosen


def drawn(
    evidence: Evidence, *, seed: int, law: Literal["uniform", "exponential"]
) -> Float64[Array, " token"]:
    """Random numbers that depend on the seed and the rollout's key, not on where it stands.

    Args:
        evidence: `key`.
        seed: of the draws.
        law: uniform on [0, 1), or exponential with mean 1.
    """
    host = Evidence(
        length=evidence.length, advantage=evidence.advantage, key=evidence["key"]
    ).on_host()
    values = [np.empty(0)]
    for key, count in zip(host["key"].tolist(), host.length.tolist(), strict=True):
        rng = np.random.default_rng((seed, key))
        values.append(rng.random(count) if law == "uniform" else rng.exponential(size=count))
    return evidence.place(np.concatenate(values))
