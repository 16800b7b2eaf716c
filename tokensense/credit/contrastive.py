"""Contrast: two prompts, or right and wrong responses of a group, over the same tokens.

Reads  the shift under a prompt that asks for a wrong answer; shifts under siblings shown; for the
       baselines the tokens themselves.
Gives  Gcpo with its other metrics and normalizations, sibling, Rlcsd, position_alignment,
       diff_alignment; rank_weights.
Sign   weights are positive; RLCSD adds, and never turns the sign of the advantage.

Popular accounts say that GCPO compares right with wrong responses. It does not: it scores one
response under two prompts. `sibling` is the told version; `position_alignment` and
`diff_alignment` are what it has to beat, for they know only where the texts differ.

Source   methods/gcpo_and_optimal_weights.md section 1; RLCSD: methods/cscr.md 2.5.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float64, Int64, Integer

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.self_distillation import k3
from tokensense.credit.shaping import clipped, mean_one, quantile_of_all
from tokensense.segments import (
    broadcast,
    segment_max,
    segment_min,
    segment_normalize,
    segment_ranks,
)

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
LARGEST = 10.0  # nats; the code's ceiling of the divergence of one token
Match: TypeAlias = Callable[[Int64[np.ndarray, " own"], Int64[np.ndarray, " other"]], np.ndarray]


def rank_weights(
    score: Float64[Array, " token"],
    length: Integer[Array, " rollout"],
    *,
    share: float,
    mass: float,
) -> Float64[Array, " token"]:
    """Weights that rise with the rank, w ~ (rank / T)^a: the top `share` of tokens gets `mass`.

    Args:
        score: any unit; equal scores share their average rank.
        length: tokens per rollout.
        share: X in (0, 1).
        mass: Y in [share, 1); equal to share: uniform.

    Returns:
        Weights, no unit, mean 1 over each rollout; the largest tends to a + 1, where
        a = ln(1 - Y) / ln(1 - X) - 1.
    """
    xp = array_namespace(score)
    exponent = math.log1p(-mass) / math.log1p(-share) - 1
    count = xp.astype(xp.asarray(broadcast(length, length)), xp.float64)
    ranks = segment_ranks(score, length)
    return segment_normalize((ranks / count) ** exponent, length)


@dataclass(frozen=True)
class Gcpo:
    """GCPO: rank weights of k = exp(d) - d - 1, d = log p under the wrong request - log p.

    d is clipped to 20 nats and k to 10. Departures: tokens of equal k share a rank (the code orders
    them by position), and a rollout whose k spans no more than `floor` is uniform (in the code it
    gets the full spread of weights by noise); weights are those of the policy that sampled, not
    worked out anew in each micro-batch. Grade: code. Uniform at mass = share, and at an infinite
    floor.

    Attributes:
        share: X, the top tokens, in (0, 1).
        mass: Y, what they get of the weight, in [share, 1).
        floor: nats; a rollout whose scores span less is left uniform.

    Raises:
        SchemaError: a setting is out of its range.
    """

    share: float = 0.4
    mass: float = 0.8
    floor: float = 1e-6

    def __post_init__(self) -> None:
        require_range("share", self.share, 1e-9, 1 - 1e-9)
        require_range("mass", self.mass, self.share, 1 - 1e-9)
        require_range("floor", self.floor, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `negative_prompt`.
        """
        score, length = self.score(evidence["negative_prompt"]), evidence.length
        xp = array_namespace(score)
        spread = broadcast(segment_max(score, length) - segment_min(score, length), length)
        weights = self.normalized(score, length)
        return xp.where(spread > self.floor, weights, xp.ones_like(weights))

    def score(self, shift: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """How far the requests differ at each token, nats, >= 0.

        Args:
            shift: d, nats.
        """
        return clipped(k3(shift), 0.0, LARGEST)

    def normalized(
        self, score: Float64[Array, " token"], length: Integer[Array, " rollout"]
    ) -> Float64[Array, " token"]:
        """Weights of a score, no unit, mean 1 over each rollout.

        Args:
            score: nats, >= 0.
            length: tokens per rollout.
        """
        return rank_weights(score, length, share=self.share, mass=self.mass)


class GcpoAbsolute(Gcpo):
    """GCPO with |d| as the score: an ablation of the paper. Settings as `Gcpo`."""

    def score(self, shift: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """|d|, nats.

        Args:
            shift: d, nats.
        """
        return array_namespace(shift).abs(shift)


class GcpoBoth(Gcpo):
    """GCPO with the mean of k in both directions, of d and of -d. Settings as `Gcpo`."""

    def score(self, shift: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """(k(d) + k(-d)) / 2, nats.

        Args:
            shift: d, nats.
        """
        return clipped((k3(shift) + k3(-shift)) / 2, 0.0, LARGEST)


class GcpoGain(Gcpo):
    """GCPO with the information gain -d as the score, clipped to [0, its 90th percentile].

    The percentile is that of all tokens given at once. Settings as `Gcpo`.
    """

    def score(self, shift: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """-d between 0 and its 90th percentile, nats.

        Args:
            shift: d, nats.
        """
        xp = array_namespace(shift)
        gain = xp.maximum(-shift, xp.zeros_like(shift))
        return gain if not gain.shape[0] else xp.minimum(gain, quantile_of_all(gain, 0.9))


@dataclass(frozen=True)
class GcpoSoftmax(Gcpo):
    """GCPO normalized by softmax(k / max k / temperature): an ablation of the paper.

    The ablation's temperature is not known; 1 is ours. Uniform at an infinite temperature.

    Attributes:
        temperature: > 0, no unit.

    Raises:
        SchemaError: a setting is out of its range.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("temperature", self.temperature, 1e-3, math.inf)

    def normalized(
        self, score: Float64[Array, " token"], length: Integer[Array, " rollout"]
    ) -> Float64[Array, " token"]:
        """Weights of a score, no unit, mean 1 over each rollout.

        Args:
            score: nats, >= 0.
            length: tokens per rollout.
        """
        xp = array_namespace(score)
        top = broadcast(segment_max(score, length), length)
        share = score / xp.where(top > 0, top, xp.ones_like(top))
        return segment_normalize(xp.exp((share - 1) / self.temperature), length)


class GcpoMinMax(Gcpo):
    """GCPO normalized by (k - min k) / (max k - min k), scaled to mean 1: an ablation."""

    def normalized(
        self, score: Float64[Array, " token"], length: Integer[Array, " rollout"]
    ) -> Float64[Array, " token"]:
        """Weights of a score, no unit, mean 1 over each rollout.

        Args:
            score: nats, >= 0.
            length: tokens per rollout.
        """
        return mean_one(score - broadcast(segment_min(score, length), length), length)


def sibling(evidence: Evidence) -> Float64[Array, " token"]:
    """The group told: w = T |e| / sum of |e|, e = shift under right siblings - that under wrong.

    Departures: popular accounts ask for a contrast of right and wrong responses without a formula;
    the re-scoring under siblings and |e| are ours. Grade: inferred. Never uniform by a setting;
    uniform where e is 0 all over a rollout.

    Args:
        evidence: `sibling_pos` and `sibling_neg`.
    """
    contrast = evidence["sibling_pos"] - evidence["sibling_neg"]
    return mean_one(array_namespace(contrast).abs(contrast), evidence.length)


@dataclass(frozen=True)
class Rlcsd:
    """RLCSD: credit = A + r without turning its sign, r = clip(strength tanh(e / scale)).

    e = shift under the right sibling - log-mean-exp of those under wrong ones. r counts where
    |r| > threshold; credit is max(0, A + r) for A > 0, min(0, A + r) for A < 0, and 0 for A = 0.
    Departures: the release takes separate means over tokens with and without r in its loss; that
    is not of a token. Grade: code. Uniform at strength 0. Defaults are those of the shipped
    configurations; the code falls back to .2 (beta), .03 (tau), .5 (limit).

    Attributes:
        strength: beta lambda >= 0, in units of the advantage.
        scale: tau, nats.
        threshold: delta, in units of the advantage.
        limit: r lies in [-limit, limit].

    Raises:
        SchemaError: a setting is out of its range.
    """

    strength: float = 0.5
    scale: float = 0.02
    threshold: float = 0.02
    limit: float = 2.0

    def __post_init__(self) -> None:
        require_range("strength", self.strength, 0.0, math.inf)
        require_range("scale", self.scale, 1e-6, math.inf)
        require_range("threshold", self.threshold, 0.0, math.inf)
        require_range("limit", self.limit, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, in units of the advantage.

        Args:
            evidence: `sibling_pos` and `sibling_neg`.
        """
        advantage = evidence.spread()
        xp = array_namespace(advantage)
        zero = xp.zeros_like(advantage)
        moved = advantage + self.added(evidence)
        kept = xp.where(advantage > 0, xp.maximum(moved, zero), xp.minimum(moved, zero))
        return xp.where(advantage == 0, zero, kept)

    def added(self, evidence: Evidence) -> Float64[Array, " token"]:
        """What is added to the advantage, r, in its units.

        Args:
            evidence: `sibling_pos` and `sibling_neg`.
        """
        contrast = evidence["sibling_pos"] - evidence["sibling_neg"]
        xp = array_namespace(contrast)
        bonus = clipped(self.strength * xp.tanh(contrast / self.scale), -self.limit, self.limit)
        return xp.where(xp.abs(bonus) > self.threshold, bonus, xp.zeros_like(bonus))


def position_alignment(evidence: Evidence) -> Float64[Array, " token"]:
    """Weight ~ share of the group's responses of other outcome that differ at the same position.

    A baseline of `sibling`: it reads the tokens alone. Mean 1 over each rollout; uniform where
    there is no response of other outcome, or none that differs. Grade: own.

    Args:
        evidence: `token_id` and `group`; the sign of the advantage says which outcome.
    """
    return _differing(evidence, _differs_in_place)


def diff_alignment(evidence: Evidence) -> Float64[Array, " token"]:
    """Weight ~ share of the group's responses of other outcome whose alignment lacks the token.

    A baseline of `sibling`: responses are aligned by their longest common blocks, so that an
    insertion does not make all later tokens differ. Time grows with the product of the lengths in
    the worst case. Otherwise as `position_alignment`. Grade: own.

    Args:
        evidence: `token_id` and `group`; the sign of the advantage says which outcome.
    """
    return _differing(evidence, _differs_in_diff)


def opposed_rollouts(evidence: Evidence) -> Iterator[tuple[int, list[int]]]:
    """Each rollout with those of its group whose advantage has the other sign, if there are any.

    Args:
        evidence: on the host; `group`.
    """
    sign, group = np.sign(evidence.advantage), evidence["group"]
    for own in range(sign.size):
        other = np.flatnonzero((group == group[own]) & (sign * sign[own] < 0))
        if other.size:
            yield own, other.tolist()


def _differing(evidence: Evidence, differs: Match) -> Float64[Array, " token"]:
    """Mean over opposed responses of which tokens differ, scaled to mean 1."""
    host = evidence.on_host()
    stop = np.cumsum(host.length)
    texts = [host["token_id"][b - n : b] for b, n in zip(stop, host.length, strict=True)]
    score = np.zeros(int(host.length.sum()))
    for own, others in opposed_rollouts(host):
        found = np.mean([differs(texts[own], texts[other]) for other in others], axis=0)
        score[stop[own] - host.length[own] : stop[own]] = found
    return evidence.place(mean_one(score, host.length))


def _differs_in_place(
    own: Int64[np.ndarray, " own"], other: Int64[np.ndarray, " other"]
) -> Float64[np.ndarray, " own"]:
    differs = np.ones(own.size)
    shared = min(own.size, other.size)
    differs[:shared] = own[:shared] != other[:shared]
    return differs


def _differs_in_diff(
    own: Int64[np.ndarray, " own"], other: Int64[np.ndarray, " other"]
) -> Float64[np.ndarray, " own"]:
    differs = np.ones(own.size)
    matcher = SequenceMatcher(None, own.tolist(), other.tolist(), autojunk=False)
    for block in matcher.get_matching_blocks():
        differs[block.a : block.a + block.size] = 0
    return differs
