"""DelTA: more credit for tokens whose gradient tells right responses from wrong ones.

Reads  a vector v of each token that stands for the gradient of its log-probability, and advantages.
Gives  Delta and its ablations, weight functions; `fit`, the rule in any geometry of v; `dense` and
       `full_head`, geometries; `row_gradient`, the published proxy.
Sign   weights are positive, so that the advantage keeps its sign.

With P the tokens of responses with A > 0 and N those with A < 0, all pooled:

    mu+ = sum_P A v / sum_P A          mu- = sum_N |A| v / sum_N |A|         the two centers
    D   = ||v - mu_other||^2 - ||v - mu_own||^2                              the margin
    alpha = sigmoid(D / g_side)        g_side = std of D over its side, tokens unweighted
    again K times: centers with weights A alpha, margins from them; g lags one round behind
    lambda = low + (high - low) alpha on P and N, low where A = 0
    w = lambda / (mean of lambda over all tokens)

Geometry   D = +-(2 v.(mu+ - mu-) + ||mu-||^2 - ||mu+||^2): only v.(mu+ - mu-) of every token and
           two norms are asked for. So the rule is the same for stored vectors, for the gradient of
           the whole head, and for exact gradients that are never stored (`probes.gradients`).
Departures A pool without a right or without a wrong response gets weight 1: in the paper there is
           nothing to estimate, in its code the missing center is 0. The code's floor of 1e-8 under
           sums of A alpha is relative to the largest |A| here. Pooling is over all tokens given at
           once (the code: those of one rank).
Grades     Delta certain (paper and code agree); the temperature of `WithinSide` inferred; what
           "without adaptive gamma" froze is not known: give `gamma`. With K = 1 the lagged
           temperature is the first one, whatever is done.
Source     arXiv:2605.21467; methods/delta.md sections 2 and 3.3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from array_api_compat import array_namespace
from jaxtyping import Float, Float64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import drawn

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
FLOOR = 1e-8  # of variances, and of sums of A alpha relative to the largest |A|


class Contrast(NamedTuple):
    """Two centers as every token sees them.

    alignment: v.(mu+ - mu-) of each token. positive, negative: ||mu+||^2, ||mu-||^2.
    """

    alignment: Float64[Array, " token"]
    positive: float
    negative: float


# Weights of the tokens in mu+ and in mu-, each summing to 1 -> what the tokens see.
Geometry: TypeAlias = Callable[[Array, Array], Contrast]
Squash: TypeAlias = Callable[[Array], Array]


class Fit(NamedTuple):
    """What DelTA makes of a pool.

    Attributes:
        alpha: in (0, 1); of the last centers. A token without advantage counts as negative here.
        margin: D of the last centers.
        gamma: (positive, negative) temperatures that alpha was made with.
        weights: of the tokens in the last mu+ and mu-, each summing to 1.
    """

    alpha: Float64[Array, " token"]
    margin: Float64[Array, " token"]
    gamma: tuple[float, float]
    weights: tuple[Float64[Array, " token"], Float64[Array, " token"]]


def row_gradient(
    hidden: Float[Array, "token hidden"], logp: Float[Array, " token"]
) -> Float64[Array, "token hidden"]:
    """(1 - p) h: gradient of log p with respect to the sampled token's row of the head alone.

    Args:
        hidden: what enters the head at the place that predicts the token.
        logp: of the token, nats.
    """
    xp = array_namespace(hidden)
    wide = xp.astype(hidden, xp.float64, copy=False)
    return -xp.expm1(xp.astype(logp, xp.float64, copy=False))[:, None] * wide


def dense(vectors: Float64[Array, "token dim"]) -> Geometry:
    """Stored vectors.

    Args:
        vectors: v of every token.
    """

    def contrast(positive: Array, negative: Array) -> Contrast:
        means = positive @ vectors, negative @ vectors
        return Contrast(vectors @ (means[0] - means[1]), *(float(m @ m) for m in means))

    return contrast


def full_head(
    residual: Float64[Array, "token vocabulary"], hidden: Float64[Array, "token hidden"]
) -> Geometry:
    """Gradients with respect to all rows of the head, residual outer hidden, never made.

    Args:
        residual: onehot - p of every token.
        hidden: what enters the head.
    """

    def contrast(positive: Array, negative: Array) -> Contrast:
        means = [residual.T @ (weights[:, None] * hidden) for weights in (positive, negative)]
        xp = array_namespace(hidden)
        alignment = xp.sum((residual @ (means[0] - means[1])) * hidden, axis=1)
        return Contrast(alignment, *(float(xp.sum(m * m)) for m in means))

    return contrast


def sigmoid(x: Float64[Array, " token"]) -> Float64[Array, " token"]:
    """1 / (1 + exp(-x)), without overflow.

    Args:
        x: any.
    """
    xp = array_namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def step(x: Float64[Array, " token"]) -> Float64[Array, " token"]:
    """1 where x > 0, else 0: alpha without the entropy term.

    Args:
        x: any.
    """
    return array_namespace(x).astype(x > 0, x.dtype)


def fit(
    geometry: Geometry,
    advantage: Float64[Array, " token"],
    *,
    refinements: int = 1,
    gamma: float | None = None,
    refreshed: bool = False,
    squash: Squash = sigmoid,
) -> Fit | None:
    """Centers, margins and alphas of a pool; None where it lacks one of its sides.

    Args:
        geometry: of the token vectors.
        advantage: of each token's response; any unit.
        refinements: K, rounds of new centers.
        gamma: one fixed temperature for both sides; None for standard deviations of margins.
        refreshed: temperatures of the margins in hand, not of the round before.
        squash: margin / temperature -> alpha.
    """
    xp = array_namespace(advantage)
    if not bool(xp.any(advantage > 0)) or not bool(xp.any(advantage < 0)):
        return None
    size = xp.abs(advantage) / xp.max(xp.abs(advantage))
    own, zero = advantage > 0, xp.zeros_like(size)
    sides = (own, advantage < 0)

    def centers(alpha: Array) -> tuple[tuple[Array, Array], Array]:
        parts = [xp.where(side, size * alpha, zero) for side in sides]
        weights = tuple(part / max(float(xp.sum(part)), FLOOR) for part in parts)
        found = geometry(*weights)
        toward = 2.0 * found.alignment + (found.negative - found.positive)
        return (weights[0], weights[1]), xp.where(own, toward, -toward)

    def spread(margin: Array) -> tuple[float, float]:
        if gamma is not None:
            return gamma, gamma
        found = [max(float(xp.var(margin[side])), FLOOR) for side in sides]
        return math.sqrt(found[0]), math.sqrt(found[1])

    def alpha_of(margin: Array, scale: tuple[float, float]) -> Array:
        return squash(xp.where(own, margin / scale[0], margin / scale[1]))

    weights, margin = centers(xp.ones_like(size))
    scale = spread(margin)
    for _ in range(refinements):
        now = spread(margin)
        alpha = alpha_of(margin, now if refreshed else scale)
        scale = now  # of this margin, for the next
        weights, margin = centers(alpha)
    scale = spread(margin) if refreshed else scale
    return Fit(alpha_of(margin, scale), margin, scale, weights)


@dataclass(frozen=True)
class Delta:
    """DelTA with its settings; formula, departures and grades in the header of this module.

    Uniform at low = high, and in a pool without a right or without a wrong response. With low 0 and
    high 1 the weight is alpha over its mean: the ablation without the range map.

    Attributes:
        refinements: K.
        low: lambda of a token at alpha 0, and of tokens without advantage.
        high: lambda of a token at alpha 1.
        gamma: one fixed temperature for both sides, in the unit of v^2.
        refreshed: 1 for temperatures of the margins in hand (a port of the code does so).

    Raises:
        SchemaError: a setting is out of its range.
    """

    refinements: int = 1
    low: float = 0.8
    high: float = 1.2
    gamma: float | None = None
    refreshed: int = 0

    def __post_init__(self) -> None:
        require_range("refinements", self.refinements, 0, 100)
        require_range("high", self.high, 1e-6, 1e6)
        require_range("low", self.low, 0.0, self.high)
        require_range("refreshed", self.refreshed, 0, 1)
        if self.gamma is not None:
            require_range("gamma", self.gamma, 1e-12, 1e12)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over all tokens.

        Args:
            evidence: the vectors that the rule reads.
        """
        return self.normalized(self.coefficients(self.vectors(evidence), evidence.spread()))

    def vectors(self, evidence: Evidence) -> Float64[Array, "token dim"]:
        """What stands for the gradients.

        Args:
            evidence: `row_gradient`.
        """
        return evidence["row_gradient"]

    def coefficients(
        self, vectors: Float64[Array, "token dim"], advantage: Float64[Array, " token"]
    ) -> Float64[Array, " token"]:
        """Lambda of every token, no unit; 1 in a pool that lacks a side.

        Args:
            vectors: v of every token.
            advantage: of its response.
        """
        found = fit(
            dense(vectors),
            advantage,
            refinements=self.refinements,
            gamma=self.gamma,
            refreshed=bool(self.refreshed),
            squash=self.squash(),
        )
        return self.mapped(None if found is None else found.alpha, advantage)

    def squash(self) -> Squash:
        """What makes an alpha of margin / temperature."""
        return sigmoid

    def mapped(
        self, alpha: Float64[Array, " token"] | None, advantage: Float64[Array, " token"]
    ) -> Float64[Array, " token"]:
        """Lambda of alpha, no unit; ones for None.

        Args:
            alpha: of every token.
            advantage: of its response.
        """
        xp = array_namespace(advantage)
        if alpha is None:
            return xp.ones_like(advantage)
        spread = self.low + (self.high - self.low) * alpha
        return xp.where(advantage != 0, spread, xp.full_like(spread, self.low))

    def normalized(self, coefficients: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """Lambda over its mean; ones where all are 0.

        Args:
            coefficients: lambda.
        """
        xp = array_namespace(coefficients)
        total = float(xp.sum(coefficients))
        if total == 0.0:
            return xp.ones_like(coefficients)
        return coefficients * coefficients.shape[0] / total


class HiddenGradient(Delta):
    """DelTA of gradients with respect to the head's input, W[y] - sum_j p_j W[j].

    The published variant takes the likeliest tokens j only, of a number that is not given.
    """

    def vectors(self, evidence: Evidence) -> Float64[Array, "token dim"]:
        """What stands for the gradients.

        Args:
            evidence: `hidden_gradient`.
        """
        return evidence["hidden_gradient"]


class Hard(Delta):
    """DelTA without the entropy term: alpha is 1 where the margin is positive, else 0."""

    def squash(self) -> Squash:
        """The step."""
        return step


class Unnormalized(Delta):
    """DelTA without the division: w = lambda, in [low, high]; the size of the update changes."""

    def normalized(self, coefficients: Float64[Array, " token"]) -> Float64[Array, " token"]:
        """Lambda as it is.

        Args:
            coefficients: lambda.
        """
        return coefficients


class WithinSide(Delta):
    """Nearness to the own center alone: alpha = sigmoid(-||v - mu_own||^2 / g), below 1/2.

    g is the standard deviation of the distance over its side (inferred). Centers are not refined.
    """

    def coefficients(
        self, vectors: Float64[Array, "token dim"], advantage: Float64[Array, " token"]
    ) -> Float64[Array, " token"]:
        """Lambda of every token, no unit. Arguments as `Delta.coefficients`."""
        found = fit(dense(vectors), advantage, refinements=0)
        if found is None:
            return self.mapped(None, advantage)
        xp = array_namespace(vectors)
        alpha = xp.zeros_like(advantage)
        for weights, side in zip(found.weights, (advantage > 0, advantage < 0), strict=True):
            distance = xp.sum((vectors - weights @ vectors) ** 2, axis=1)
            scale = self.gamma or math.sqrt(max(float(xp.var(distance[side])), FLOOR))
            alpha = xp.where(side, sigmoid(-distance / scale), alpha)
        return self.mapped(alpha, advantage)


@dataclass(frozen=True)
class RandomRange(Delta):
    """Lambda at random in [low, high]: if it does as well, the vectors do not matter.

    Attributes:
        seed: with `key` it decides a rollout's weights before the division by their mean.
    """

    seed: int = 0

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over all tokens.

        Args:
            evidence: `key`.
        """
        alpha = drawn(evidence, seed=self.seed, law="uniform")
        return self.normalized(self.low + (self.high - self.low) * alpha)
