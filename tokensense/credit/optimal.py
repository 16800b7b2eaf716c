"""Token weights that solve an optimization problem: OPTW, and cousins with a closed form.

Reads  ||onehot - p|| under base (noise); the learning value of tokens.
Gives  Optw, Vcore, EntropicBudget; Parts, programme_of, gradients: OPTW's problem in its own
       words, with the adjoint beneath it.
Sign   weights are positive, so that the advantage keeps its sign.

OPTW, for the T tokens of a response with noise v, evidence c, budget S (T unless given):

    min over w   1/2 w'H w - b'w   with   sum of w = S,   low <= w <= high
    H = lambda diag(v) + phi I + gamma L + rho U U',      b = phi c + rho U r

lambda weighs the variance of the gradient estimate (diagonal, as score vectors are martingale
differences), phi faithfulness to the evidence, gamma smoothness over a graph with Laplacian L (a
chain or a band, or features Z with affinity Z Z'), rho faithfulness to the reward, U'w = r.

Source   OPTW: own design, methods/gcpo_and_optimal_weights.md 2.6; VCORE: 2.3.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.filling import Tokens
from tokensense.credit.programme import Programme, Solution, adjoint, solve
from tokensense.credit.shaping import mean_one, softmax
from tokensense.segments import broadcast, segment_index, segment_max, segment_min

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
LEAST_NOISE = 0.01  # of the mean of a rollout: sure tokens would else take what they are given
HALVINGS = 60


@dataclass(frozen=True)
class Parts:
    """The problem's data. All arrays float64 but `length`; one rollout where factors are given.

    Attributes:
        noise: (token) v > 0.
        evidence: (token) c.
        length: (rollout) tokens.
        affinity: (band, token) [k, t] is between tokens t and t + k + 1, >= 0; 0 across rollouts.
        features: (token, feature) Z >= 0, whose products are affinities; no columns for none.
        effects: (token, effect) U; no columns for none.
        target: (effect) r.
        low: smallest weight.
        high: largest weight.
        total: (rollout) S.
        variance: lambda.
        fidelity: phi.
        smoothness: gamma.
        reward: rho.
    """

    noise: Tokens
    evidence: Tokens
    length: Int64[np.ndarray, " rollout"]
    affinity: Float64[np.ndarray, "band token"]
    features: Float64[np.ndarray, "token feature"]
    effects: Float64[np.ndarray, "token effect"]
    target: Float64[np.ndarray, " effect"]
    total: Float64[np.ndarray, " rollout"]
    low: float = 0.5
    high: float = 2.0
    variance: float = 1.0
    fidelity: float = 1.0
    smoothness: float = 0.3
    reward: float = 0.0


class Gradients(NamedTuple):
    """d loss / d each part; names as in `Parts`.

    Attributes:
        noise: (token).
        evidence: (token).
        affinity: (band, token).
        target: (effect).
        total: (rollout).
        low: one number.
        high: one number.
        variance: one number.
        fidelity: one number.
        smoothness: one number.
        reward: one number.
    """

    noise: Tokens
    evidence: Tokens
    affinity: Float64[np.ndarray, "band token"]
    target: Float64[np.ndarray, " effect"]
    total: Float64[np.ndarray, " rollout"]
    low: float
    high: float
    variance: float
    fidelity: float
    smoothness: float
    reward: float


def parts_of(
    noise: Tokens, evidence: Tokens, length: Int64[np.ndarray, " rollout"], **more: object
) -> Parts:
    """The problem with a chain of affinity 1 within rollouts, no features, no effects, S = T.

    Args:
        noise: v, any unit; scaled to mean 1 in each rollout and cut at 1 % from below.
        evidence: c, no unit.
        length: tokens per rollout.
        **more: other parts, as in `Parts`.
    """
    scaled = np.maximum(mean_one(noise, length), LEAST_NOISE)
    owner = segment_index(length)
    chain = np.zeros((1, owner.size))
    chain[0, :-1] = owner[1:] == owner[:-1]
    none = np.empty((owner.size, 0))
    plain = {
        "affinity": chain, "features": none, "effects": none, "target": np.empty(0),
        "total": length.astype(np.float64),
    }  # fmt: skip
    return Parts(scaled, evidence, length, **(plain | more))  # type: ignore[arg-type]


def programme_of(parts: Parts) -> Programme:
    """The problem as a quadratic programme.

    Args:
        parts: of one or more rollouts.
    """
    count = parts.noise.size
    gamma, features = parts.smoothness, parts.features
    links = gamma * parts.affinity if gamma else np.zeros((0, count))
    diagonal = parts.variance * parts.noise + parts.fidelity
    factors, signs = [np.empty((count, 0))], [np.empty(0)]
    if gamma and features.shape[1]:
        diagonal = diagonal + gamma * features @ features.sum(axis=0)
        factors.append(features)
        signs.append(np.full(features.shape[1], -gamma))
    if parts.reward and parts.effects.shape[1]:
        factors.append(parts.effects)
        signs.append(np.full(parts.effects.shape[1], parts.reward))
    return Programme(
        diagonal=diagonal,
        linear=parts.fidelity * parts.evidence + parts.reward * (parts.effects @ parts.target),
        length=parts.length,
        total=parts.total,
        low=np.full(count, parts.low),
        high=np.full(count, parts.high),
        links=links,
        factors=np.concatenate(factors, axis=1),
        signs=np.concatenate(signs),
    )


def gradients(parts: Parts, solution: Solution, gradient: Tokens) -> Gradients:
    """Gradients of a loss with respect to all parts, from that with respect to the weights.

    Args:
        parts: of the problem.
        solution: of `solve(programme_of(parts))`.
        gradient: d loss / d w.
    """
    programme = programme_of(parts)
    w = solution.weights
    p, eta = adjoint(programme, solution, gradient)
    at_low = ~solution.free & (w <= programme.low)
    at_high = ~solution.free & ~at_low
    # A bound moves its token, and through H and the budget all free ones.
    felt = gradient - eta[programme.owner] - programme.times(p)
    affinity = np.zeros_like(parts.affinity)
    for k in range(1, affinity.shape[0] + 1):
        affinity[k - 1, :-k] = -parts.smoothness * (p[:-k] - p[k:]) * (w[:-k] - w[k:])
    misses = parts.target - parts.effects.T @ w
    return Gradients(
        noise=-parts.variance * p * w,
        evidence=parts.fidelity * p,
        affinity=affinity,
        target=parts.reward * (parts.effects.T @ p),
        total=eta,
        low=float(felt[at_low].sum()),
        high=float(felt[at_high].sum()),
        variance=float(-p @ (parts.noise * w)),
        fidelity=float(p @ (parts.evidence - w)),
        smoothness=float(-p @ _laplacian_times(parts, w)),
        reward=float(p @ (parts.effects @ misses)),
    )


def _laplacian_times(parts: Parts, w: Tokens) -> Tokens:
    """L w."""
    result = np.zeros_like(w)
    for k, link in enumerate(parts.affinity, start=1):
        flow = link[:-k] * (w[:-k] - w[k:])
        result[:-k] += flow
        result[k:] -= flow
    features = parts.features
    return np.asarray(result + (features @ features.sum(axis=0)) * w - features @ (features.T @ w))


@dataclass(frozen=True)
class Optw:
    """OPTW with v = ||onehot - p||^2, c = 1 and a chain; the problem in the header.

    Noisy tokens lose, quiet ones gain, neighbors alike. Departures: own design; the article that
    asks for such weights names no paper. Grade: own. Uniform at low 1 and high 1.

    Attributes:
        variance: lambda >= 0.
        fidelity: phi > 0.
        smoothness: gamma >= 0.
        low: smallest weight, in [0, 1].
        high: largest weight, >= 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    variance: float = 1.0
    fidelity: float = 1.0
    smoothness: float = 0.3
    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        require_range("variance", self.variance, 0.0, 1e9)
        require_range("fidelity", self.fidelity, 1e-9, 1e9)
        require_range("smoothness", self.smoothness, 0.0, 1e9)
        require_range("low", self.low, 0.0, 1.0)
        require_range("high", self.high, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `distance`.
        """
        host = evidence.on_host()
        return evidence.place(self.balanced(np.ones_like(host["distance"]), host))

    def balanced(self, score: Tokens, host: Evidence) -> Tokens:
        """The weights nearest to a score that the noise, the chain and the bounds allow.

        Args:
            score: c, mean 1 over each rollout: the weights of any other rule, for instance.
            host: `distance`, on the host.
        """
        parts = parts_of(
            host["distance"] ** 2, score, host.length, low=self.low, high=self.high,
            variance=self.variance, fidelity=self.fidelity, smoothness=self.smoothness,
        )  # fmt: skip
        return solve(programme_of(parts)).weights


@dataclass(frozen=True)
class Vcore:
    """VCORE: w = T exp(tau s) / sum of exp(tau s), s the learning value: most gain for its KL.

    Departures: made for supervised fine-tuning; its variance control, one factor for the whole
    loss, is not of a token and is left to the trainer; the scale of s is that of the supplier.
    Grade: second-hand (equations), code (constants). Uniform at tau 0.

    Attributes:
        tau: >= 0, one over the unit of the learning value.

    Raises:
        SchemaError: a setting is out of its range.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        require_range("tau", self.tau, 0.0, 1e300)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `learning_value`.
        """
        return softmax(self.tau * evidence["learning_value"], evidence.length)


@dataclass(frozen=True)
class EntropicBudget:
    """VCORE's problem as it is posed: the most learning value with KL(w / T || uniform) <= budget.

    w = T exp(tau s) / sum of exp(tau s), tau found for each rollout: the scale of s plays no
    part. Where even all weight on the best tokens stays within the budget, they get it. Departures:
    a fixed budget in the place of a fixed tau. Grade: own. Uniform at budget 0.

    Attributes:
        budget: nats.

    Raises:
        SchemaError: a setting is out of its range.
    """

    budget: float = 0.1

    def __post_init__(self) -> None:
        require_range("budget", self.budget, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `learning_value`.
        """
        host = evidence.on_host()
        value, length = host["learning_value"], host.length
        low, high = (broadcast(f(value, length), length) for f in (segment_min, segment_max))
        varies = high > low
        # In [-1, 0]: tau is then found on one scale for all.
        share = np.where(varies, (value - high) / np.where(varies, high - low, 1.0), 0.0)
        tau = self._found(share, segment_index(length), length)
        return evidence.place(softmax(broadcast(tau, length) * share, length))

    def _found(
        self,
        share: Tokens,
        owner: Int64[np.ndarray, " token"],
        length: Int64[np.ndarray, " rollout"],
    ) -> Float64[np.ndarray, " rollout"]:
        """The largest tau up to 1e12 whose weights stay within the budget, by halving."""
        low, high = np.full(length.size, -12.0), np.full(length.size, 12.0)
        if not self.budget:
            return np.zeros(length.size)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            raw = np.exp((10.0**middle)[owner] * share)
            total = np.bincount(owner, weights=raw, minlength=length.size)
            q = raw / total[owner]
            # KL(q || uniform) = log T + sum of q log q
            spent = q * np.log(np.where(q > 0, q * length[owner], 1.0))
            within = np.bincount(owner, weights=spent, minlength=length.size) <= self.budget
            low, high = np.where(within, middle, low), np.where(within, high, middle)
        return 10.0**low
