"""Probability and entropy: weights from the policy's own uncertainty at each token.

Reads  log p, entropy under base; for some the gap to a reference policy, groups, rewards, ratios.
Gives  HighEntropy, Gtpo, gtpo_group, Ar, Dgpo, Stare, A3po, Covariance, TrGrpo.
Sign   weights are positive, so that the advantage keeps its sign.

Nothing here needs a pass of its own but DGPO, which asks a reference policy.
Each class states its formula, its departures, its grade and the setting at which it is uniform.

Source   methods/cscr.md 2.10; methods/gcpo_and_optimal_weights.md 3.1 and 3.6; methods/delta.md
         section 7 (TR-GRPO).
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import clipped, mean_one, softmax, top_of
from tokensense.segments import (
    broadcast,
    segment_index,
    segment_normalize,
    segment_quantile,
)

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`


@dataclass(frozen=True)
class HighEntropy:
    """80/20: weight 1 at or above the (1 - share)-quantile of entropy of all tokens, else 0.

    The quantile is linear, of all tokens given at once. Departures: none known. Grade: code
    (TRL `top_entropy_quantile`). Uniform at share 1. Weights are 0 or 1.

    Attributes:
        share: rho in (0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        require_range("share", self.share, 1e-9, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `entropy`.
        """
        entropy = evidence["entropy"]
        xp = array_namespace(entropy)
        chosen = top_of(entropy, xp.ones_like(entropy) > 0, share=self.share)
        return xp.astype(chosen, xp.float64)


@dataclass(frozen=True)
class Gtpo:
    """GTPO-like: w = max(0, 1 + beta (H / mean H - 1)), scaled to mean 1 over each rollout.

    Departures: this is the form of a third party's code; the paper's own compares responses at the
    same position, `gtpo_group`. Scaling acts only where the 0 does. Grade: code (2.10). Uniform at
    beta 0, and where H is 0 all over a rollout.

    Attributes:
        beta: >= 0.

    Raises:
        SchemaError: a setting is out of its range.
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        require_range("beta", self.beta, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `entropy`.
        """
        relative = mean_one(_non_negative(evidence["entropy"]), evidence.length)
        xp = array_namespace(relative)
        weights = 1 + self.beta * (relative - 1)
        return segment_normalize(xp.maximum(weights, xp.zeros_like(weights)), evidence.length)


def gtpo_group(evidence: Evidence) -> Float64[Array, " token"]:
    """GTPO: w = n_t H_it / sum over the group's n_t responses that have a token t of H_kt.

    Mean 1 at each position of each group, so over the batch too. Departures: the abstract gives the
    ratio as a share of the reward of right responses; here it multiplies any advantage. Grade:
    inferred. Never uniform by a setting; uniform where all entropies of a position are 0 or equal.

    Args:
        evidence: `entropy` and `group`.
    """
    host = evidence.on_host()
    entropy = np.maximum(host["entropy"], 0)
    count, total = at_position(host, np.stack([np.ones_like(entropy), entropy]))
    weights = np.where(total > 0, count * entropy / np.where(total > 0, total, 1), 1.0)
    return evidence.place(weights)


@dataclass(frozen=True)
class Ar:
    """AR: w = alpha p + 1 - alpha: rare tokens, whose gradients are large, count less.

    Departures: none. Grade: code (2.10); a second source has alpha .1. Uniform at alpha 0. Weights
    lie in [1 - alpha, 1].

    Attributes:
        alpha: in [0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, 0.0, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `logp`.
        """
        return self.alpha * _probability(evidence) + (1 - self.alpha)


@dataclass(frozen=True)
class Dgpo:
    """DGPO: w = T exp(s / tau) / sum of exp(s / tau), s = d (H / ln vocabulary)^kappa.

    d = squared Hellinger distance of the policy and the reference. Departures: none known. Grade:
    second-hand (two re-implementations agree). Uniform at an infinite tau.

    Attributes:
        tau: > 0.
        kappa: >= 0.
        vocabulary: entries of the policy's vocabulary, >= 2; that of Qwen2.5 unless set.

    Raises:
        SchemaError: a setting is out of its range.
    """

    tau: float = 0.5
    kappa: float = 1.0
    vocabulary: int = 151_936

    def __post_init__(self) -> None:
        require_range("tau", self.tau, 1e-3, math.inf)
        require_range("kappa", self.kappa, 0.0, math.inf)
        require_range("vocabulary", self.vocabulary, 2, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `hellinger` and `entropy`.
        """
        share = clipped(evidence["entropy"] / math.log(self.vocabulary), 0.0, 1.0)
        score = clipped(evidence["hellinger"], 0.0, 1.0) * share**self.kappa
        return softmax(score / self.tau, evidence.length)


@dataclass(frozen=True)
class Stare:
    """STARE: where the policy is sure, rare tokens of good responses gain, those of bad ones lose.

    If the mean entropy of all tokens is below `gate`: the top `share` by surprisal of the tokens
    with A > 0 gets weight `up`, that of the tokens with A < 0 `down` (the code's variant C2; O1 has
    down 1). Departures: its adaptive weights are the trainer's. Grade: code. Uniform at up 1 and
    down 1. Weights lie in [down, up].

    Attributes:
        gate: nats.
        share: in [0, 1].
        up: >= 1.
        down: in [0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    gate: float = 0.3
    share: float = 0.1
    up: float = 1.1
    down: float = 0.9

    def __post_init__(self) -> None:
        require_range("gate", self.gate, 0.0, math.inf)
        require_range("share", self.share, 0.0, 1.0)
        require_range("up", self.up, 1.0, math.inf)
        require_range("down", self.down, 0.0, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `logp` and `entropy`.
        """
        surprisal, advantage = -evidence["logp"], evidence.spread()
        xp = array_namespace(surprisal)
        one = xp.ones_like(surprisal)
        if not one.shape[0] or float(xp.mean(evidence["entropy"])) >= self.gate:
            return one
        good = top_of(surprisal, advantage > 0, share=self.share)
        bad = top_of(surprisal, advantage < 0, share=self.share)
        return xp.where(good, self.up * one, xp.where(bad, self.down * one, one))


@dataclass(frozen=True)
class A3po:
    """A3PO: the rarest tokens of good and the likeliest of bad responses count `factor` times.

    The `share` of tokens of each response, by quantile. Departures: whether the share is of a
    response or of the batch is not known; the decay of the factor is the trainer's. Grade:
    inferred. Uniform at factor 1. Weights are 1 or `factor`.

    Attributes:
        share: in [0, 1].
        factor: >= 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    share: float = 0.2
    factor: float = 2.0

    def __post_init__(self) -> None:
        require_range("share", self.share, 0.0, 1.0)
        require_range("factor", self.factor, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `logp`.
        """
        advantage, length = evidence.spread(), evidence.length
        xp = array_namespace(advantage)
        # Rare where A > 0, likely where A < 0: both are the top of this score.
        score = -evidence["logp"] * xp.sign(advantage)
        level = broadcast(segment_quantile(score, length, q=1 - self.share), length)
        one = xp.ones_like(score)
        return xp.where((advantage != 0) & (score >= level), self.factor * one, one)


@dataclass(frozen=True)
class Covariance:
    """Covariance-aware GRPO: w ~ exp(-c^2 / (2 (width s)^2)), c = (log p - mean)(A - mean).

    Means, s = root mean square of c about its mean, and the scaling to mean 1 are over all tokens
    given at once. Departures: width is ours, 1 in the source. Grade: second-hand. Uniform at an
    infinite width, and where c does not vary.

    Attributes:
        width: > 0.

    Raises:
        SchemaError: a setting is out of its range.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        require_range("width", self.width, 1e-3, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over the batch.

        Args:
            evidence: `logp`.
        """
        logp, advantage = evidence["logp"], evidence.spread()
        xp = array_namespace(logp)
        if not logp.shape[0]:
            return logp
        c = (logp - xp.mean(logp)) * (advantage - xp.mean(advantage))
        spread = xp.mean((c - xp.mean(c)) ** 2)
        if float(spread) <= 0:
            return xp.ones_like(logp)
        relative = c / xp.sqrt(spread) / self.width
        weights = xp.exp(-xp.minimum(relative**2 / 2, 700 * xp.ones_like(c)))
        return segment_normalize(weights, np.array([logp.shape[0]]))


@dataclass(frozen=True)
class TrGrpo:
    """TR-GRPO: w = clip(slope (sigmoid(p / tau) - middle), low, high), rising in p.

    Departures: no constant is known; these make w run from 1/2 at p = 0 to about 1.4 at p = 1.
    Grade: inferred. Uniform at low 1 and high 1.

    Attributes:
        slope: > 0.
        middle: in [0, 1).
        tau: > 0.
        low: smallest weight.
        high: largest weight.

    Raises:
        SchemaError: a setting is out of its range.
    """

    slope: float = 4.0
    middle: float = 0.375
    tau: float = 1.0
    low: float = 0.5
    high: float = 1.5

    def __post_init__(self) -> None:
        require_range("slope", self.slope, 0.0, math.inf)
        require_range("middle", self.middle, 0.0, 1.0)
        require_range("tau", self.tau, 1e-3, math.inf)
        require_range("low", self.low, 0.0, 1.0)
        require_range("high", self.high, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `logp`.
        """
        p = _probability(evidence)
        xp = array_namespace(p)
        half = 0.5 + xp.tanh(p / self.tau / 2) / 2  # the sigmoid, without overflow
        return clipped(self.slope * (half - self.middle), self.low, self.high)


def at_position(
    evidence: Evidence, values: Float64[np.ndarray, "row token"]
) -> Float64[np.ndarray, "row token"]:
    """Sum of each row over the group's responses that have a token at the same position.

    Args:
        evidence: on the host; `group`.
        values: any unit.
    """
    length = evidence.length
    owner = segment_index(length)
    position = np.arange(owner.size) - (np.cumsum(length) - length)[owner]
    places = np.stack([evidence["group"][owner].astype(np.int64), position])
    _, which = np.unique(places, axis=1, return_inverse=True)
    which = which.reshape(-1)
    # Of no tokens, `bincount` makes whole numbers.
    sums = [np.bincount(which, weights=row).astype(np.float64) for row in values]
    return np.stack([total[which] for total in sums])


def _probability(evidence: Evidence) -> Float64[Array, " token"]:
    """Probability of the sampled token, in [0, 1]."""
    logp = evidence["logp"]
    xp = array_namespace(logp)
    return xp.exp(clipped(logp, -700.0, 0.0))


def _non_negative(values: Float64[Array, " token"]) -> Float64[Array, " token"]:
    return array_namespace(values).maximum(values, array_namespace(values).zeros_like(values))
