"""CSCR: less credit for tokens that move when the verdict is told beforehand; and its controls.

Reads  z+ and z-, shifts under "verified correct" and "verified wrong", nats; for the controls
       surprisal, entropy, ||onehot - p|| under base, and a placebo pair.
Gives  Cscr and seven controls: weight functions whose fields are the settings.
Sign   weights are positive, so that the advantage keeps its sign.

    s_t = max(|z+_t|, |z-_t|)
    a_t = 1 - gamma (1 - exp(-(s_t - lambda)_+ / tau))
    w_t = T a_t / sum of a over the T tokens of the rollout

Controls   A control deals the very weights of CSCR anew within each rollout: the token that ranks
           k-th by another score gets the weight of the token that ranks k-th by s. The distribution
           of weights is then equal to the last bit, and only the choice of tokens differs. If a
           control does as well, the counterfactual passes add nothing. Ties in a score go by
           position.
Departures The paper's text and code are not public. Certain are s, the threshold, an exponential
           decay down to 1 - gamma, the normalization over the trajectory and gamma = .2 (grade D);
           that exact form, tau = 1 and lambda = .05 (the author's next project) are inferred
           (grade I). The controls are ours (methods/cscr.md section 5.8).
Source     arXiv:2607.27888; methods/cscr.md section 1.3.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device
from jaxtyping import Float64, Int64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import drawn
from tokensense.errors import SchemaError
from tokensense.segments import (
    broadcast,
    offsets,
    segment_normalize,
    segment_quantile,
    segment_ranks,
)

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
THRESHOLD = 0.05
SHORTEST_TAU = 1e-6  # nats; shorter ones are a step, and excess / tau could overflow


def sensitivity(
    positive: Float64[Array, " token"], negative: Float64[Array, " token"]
) -> Float64[Array, " token"]:
    """Larger size, s = max(|z+|, |z-|), nats, never negative.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    xp = array_namespace(positive)
    return xp.maximum(xp.abs(positive), xp.abs(negative))


@dataclass(frozen=True)
class Cscr:
    """CSCR with its settings; formula, departures and grades in the header of this module.

    Uniform at gamma 0, at an infinite threshold, and where s does not vary.

    Attributes:
        gamma: the most a token can lose, in [-1, 1]; below 0 sensitive tokens gain instead.
        threshold: lambda, nats: tokens with smaller s keep their credit.
        tau: nats by which s must exceed the threshold for 1 - 1/e of the loss.
        quantile: in place of a fixed threshold: this quantile of s over all tokens given at once.
            A rollout's weights then depend on the rollouts beside it.

    Raises:
        SchemaError: a setting is out of its range, or both thresholds are given.
    """

    gamma: float = 0.2
    threshold: float = THRESHOLD
    tau: float = 1.0
    quantile: float | None = None

    def __post_init__(self) -> None:
        require_range("gamma", self.gamma, -1.0, 1.0)
        require_range("threshold", self.threshold, 0.0, math.inf)
        require_range("tau", self.tau, SHORTEST_TAU, math.inf)
        if self.quantile is None:
            return
        require_range("quantile", self.quantile, 0.0, 1.0)
        if self.threshold != THRESHOLD:
            raise SchemaError(
                f"`threshold` and `quantile` need one of them alone; they are {self.threshold} and "
                f"{self.quantile}. Leave one out."
            )

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `z_pos` and `z_neg`.
        """
        return self.attenuated(self.sensitivity(evidence), evidence.length)

    def sensitivity(self, evidence: Evidence) -> Float64[Array, " token"]:
        """The score s of every token, nats.

        Args:
            evidence: `z_pos` and `z_neg`.
        """
        return sensitivity(evidence["z_pos"], evidence["z_neg"])

    def attenuated(
        self, score: Float64[Array, " token"], length: Int64[Array, " rollout"]
    ) -> Float64[Array, " token"]:
        """Weights that any score gives in the place of s: no unit, mean 1 over each rollout.

        Args:
            score: of each token, nats, never negative.
            length: tokens per rollout.

        Raises:
            SchemaError: at gamma 1, a rollout whose every weight is too small for a float.
        """
        xp = array_namespace(score)
        threshold: Array = self.threshold
        if self.quantile is not None:
            threshold = segment_quantile(score, np.array([score.shape[0]]), q=self.quantile)
        excess = score - threshold
        excess = xp.where(excess > 0, excess, xp.zeros_like(excess))
        # 1 - gamma (1 - e^-x), exactly 1 at gamma 0 and up to the threshold.
        kept = 1.0 + self.gamma * xp.expm1(-excess / self.tau)
        return segment_normalize(kept, length)


@dataclass(frozen=True)
class Dealt(Cscr):
    """CSCR's weights, dealt anew within each rollout by the ranks of another score.

    Uniform where CSCR is. Settings as `Cscr`.
    """

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit: those of CSCR in another order within each rollout.

        Args:
            evidence: what CSCR needs and what the score needs.
        """
        weights = super().__call__(evidence)
        given = _order(self.sensitivity(evidence), evidence.length)
        taken = _order(self.score(evidence), evidence.length)
        dealt = array_namespace(weights).empty_like(weights)
        dealt[taken] = weights[given]
        return dealt

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """What ranks the tokens: the largest score gets the weight of the largest s.

        Args:
            evidence: what the score needs.

        Raises:
            NotImplementedError: a control does not say by what it deals.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Shuffled(Dealt):
    """Dealt at random. If it does as well, it never mattered which tokens lose credit.

    Attributes:
        seed: with `key` it decides a rollout's order, wherever the rollout stands.
    """

    seed: int = 0

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Uniform random numbers, no unit.

        Args:
            evidence: `key`.
        """
        return drawn(evidence, seed=self.seed, law="uniform")


class SurprisalMatched(Dealt):
    """Dealt by surprisal. If it does as well, CSCR only damps unlikely tokens."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """-log p, nats.

        Args:
            evidence: `logp`.
        """
        return -evidence["logp"]


class EntropyMatched(Dealt):
    """Dealt by entropy. If it does as well, CSCR only damps undecided places."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Entropy, nats.

        Args:
            evidence: `entropy`.
        """
        return evidence["entropy"]


class GradientNormMatched(Dealt):
    """Dealt by ||onehot - p||. If it does as well, CSCR only shrinks large gradients."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """||onehot - p||, no unit.

        Args:
            evidence: `distance`.
        """
        return evidence["distance"]


class CommonOnly(Dealt):
    """Dealt by |m| = |z+ + z-| / 2: the effect of being told any verdict."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """|m|, nats.

        Args:
            evidence: `z_pos` and `z_neg`.
        """
        return abs(evidence["z_pos"] + evidence["z_neg"]) / 2


class ContrastOnly(Dealt):
    """Dealt by |d| = |z+ - z-| / 2: the part that depends on which verdict is told."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """|d|, nats.

        Args:
            evidence: `z_pos` and `z_neg`.
        """
        return abs(evidence["z_pos"] - evidence["z_neg"]) / 2


class Placebo(Dealt):
    """Dealt by s of an irrelevant word pair. If it does as well, the verdict does not matter."""

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """max(|z+|, |z-|) of the placebo pair, nats.

        Args:
            evidence: `placebo_pos` and `placebo_neg`.
        """
        return sensitivity(evidence["placebo_pos"], evidence["placebo_neg"])


def _order(
    score: Float64[Array, " token"], length: Int64[Array, " rollout"]
) -> Int64[Array, " token"]:
    """Tokens sorted within their rollouts by score, ties by position."""
    ranks = segment_ranks(score, length)
    xp = array_namespace(ranks)
    # Ranks of a rollout of n tokens lie in [1, n]: behind the start they are all before the next.
    start = xp.asarray(broadcast(offsets(length)[:-1], length), device=device(ranks))
    return xp.argsort(xp.astype(start, xp.float64) + ranks, stable=True)
