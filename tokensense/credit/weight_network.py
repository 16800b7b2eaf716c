"""A light network in front of OPTW, trained on learning value through the quadratic programme.

Reads  evidence that costs no pass beside base: log p, entropy, ||onehot - p||, place in the
       response, sign of the advantage; for `fit` the learning value too.
Gives  WeightNetwork, a weight function; fit; objective, what is maximized, with its gradient.
Sign   weights are positive. A positive objective: the weighted update raises held-out reward.

The network proposes c = T softplus(f) / sum of softplus(f), f a layer of tanh units; OPTW makes of
c the nearest weights that noise, chain and bounds allow. What is maximized is the mean over batches
of the gain of an update of length 1, gradients of tokens taken as orthogonal:

    sum of w A l / sqrt(sum of (w A d)^2),     l learning value, d = ||onehot - p||

Its gradient goes through the programme by the adjoint (one solve more) and through the network by
hand. A network that was not trained gives c = 1: it is plain OPTW.

Source   own design, methods/gcpo_and_optimal_weights.md 2.6, "light weight network". Departure: the
         network reads five numbers a token and no hidden states.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from tokensense.checks import require_member, require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.filling import Tokens
from tokensense.credit.optimal import Optw, gradients, parts_of, programme_of
from tokensense.credit.programme import solve
from tokensense.credit.shaping import mean_one
from tokensense.errors import StatisticsError
from tokensense.segments import broadcast, segment_sum

FEATURES = ("surprisal", "entropy", "distance", "place", "side")
NEEDS = frozenset({"logp", "entropy", "distance"})
MOMENTS = (0.9, 0.999)  # of Adam
TINY = 1e-12


class WeightNetwork(NamedTuple):
    """A network with its programme: evidence in, weights out.

    Attributes:
        center: (feature) taken off.
        scale: (feature) divided by, > 0.
        inner: (feature + 1, unit) first layer, the last row its offsets.
        outer: (unit + 1) second layer, the last number its offset.
        optw: settings of the programme.
        features: those of FEATURES that the network sees, in the order of `center`.
    """

    center: Float64[np.ndarray, " feature"]
    scale: Float64[np.ndarray, " feature"]
    inner: Float64[np.ndarray, "row unit"]
    outer: Float64[np.ndarray, " row"]
    optw: Optw
    features: tuple[str, ...] = FEATURES

    def __call__(self, evidence: Evidence) -> Tokens:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `logp`, `entropy` and `distance`.
        """
        host = evidence.on_host()
        return np.asarray(evidence.place(self.optw.balanced(self.proposed(host), host)))

    def proposed(self, host: Evidence) -> Tokens:
        """The evidence c that goes into the programme, mean 1 over each rollout.

        Args:
            host: as in `__call__`, on the host.
        """
        units = np.tanh(_widened(self._seen(host)) @ self.inner)
        return np.asarray(mean_one(np.logaddexp(0.0, _widened(units) @ self.outer), host.length))

    def _seen(self, host: Evidence) -> Float64[np.ndarray, "token feature"]:
        return np.asarray((columns(host, self.features) - self.center) / self.scale)

    def backward(self, host: Evidence, gradient: Tokens) -> "WeightNetwork":
        """Gradient with respect to both layers, in the places of the layers; the rest is 0.

        Args:
            host: as in `proposed`.
            gradient: with respect to c.
        """
        seen = _widened(self._seen(host))
        units = np.tanh(seen @ self.inner)
        raw = _widened(units) @ self.outer
        positive = np.logaddexp(0.0, raw)
        total = np.maximum(broadcast(segment_sum(positive, host.length), host.length), TINY)
        count = broadcast(host.length, host.length).astype(np.float64)
        c = positive * count / total
        pull = broadcast(segment_sum(gradient * c, host.length), host.length) / count
        of_raw = count / total * (gradient - pull) / (1 + np.exp(-raw))
        of_units = of_raw[:, None] * self.outer[:-1] * (1 - units**2)
        return self._replace(inner=seen.T @ of_units, outer=_widened(units).T @ of_raw)


def columns(
    host: Evidence, features: Sequence[str] = FEATURES
) -> Float64[np.ndarray, "token feature"]:
    """What the network sees of each token.

    Args:
        host: `logp`, `entropy`, `distance`, on the host.
        features: names of FEATURES.

    Raises:
        SchemaError: a name is none of them.
    """
    start = np.cumsum(host.length) - host.length
    place = np.arange(int(host.length.sum())) - broadcast(start, host.length)
    found = {
        "surprisal": -host["logp"],
        "entropy": host["entropy"],
        "distance": host["distance"],
        "place": (place + 0.5) / np.maximum(broadcast(host.length, host.length), 1),
        "side": np.sign(host.spread()),
    }
    for name in features:
        require_member("features", name, found)
    return np.stack([found[name].astype(np.float64) for name in features], axis=1)


def objective(host: Evidence, weights: Tokens) -> tuple[float, Tokens]:
    """Gain of an update of length 1 with these weights, and its gradient by each weight.

    Args:
        host: `learning_value` and `distance`, on the host.
        weights: of every token, no unit.

    Returns:
        The gain, in units of the learning value over those of `distance`; 0 without any credit.
    """
    gain = host.spread() * host["learning_value"]
    square = (host.spread() * host["distance"]) ** 2
    size = float(np.sqrt(weights**2 @ square))
    if size < TINY:
        return 0.0, np.zeros_like(weights)
    value = float(weights @ gain) / size
    return value, gain / size - value * weights * square / size**2


def step_gradient(network: WeightNetwork, host: Evidence) -> tuple[float, WeightNetwork]:
    """The objective of a batch and its gradient with respect to the layers.

    Args:
        network: as it is.
        host: what the network reads, and the learning value; on the host.
    """
    optw = network.optw
    parts = parts_of(
        host["distance"] ** 2, network.proposed(host), host.length, low=optw.low, high=optw.high,
        variance=optw.variance, fidelity=optw.fidelity, smoothness=optw.smoothness,
    )  # fmt: skip
    solution = solve(programme_of(parts))
    value, by_weight = objective(host, solution.weights)
    return value, network.backward(host, gradients(parts, solution, by_weight).evidence)


def fit(
    batches: Sequence[Evidence],
    *,
    optw: Optw | None = None,
    features: tuple[str, ...] = FEATURES,
    units: int = 8,
    steps: int = 200,
    rate: float = 0.02,
    seed: int = 0,
) -> tuple[WeightNetwork, Float64[np.ndarray, " step"]]:
    """Train a network by Adam on the mean objective of all batches.

    Args:
        batches: `logp`, `entropy`, `distance`, `learning_value` and advantages; batches whose
            advantages are all 0 teach nothing.
        optw: settings of the programme; None for the defaults.
        features: that the network sees. Without `side` it cannot treat right and wrong responses
            unlike, which moves the policy even where no token is credited for the outcome.
        units: of the inner layer.
        steps: of Adam, each over all batches.
        rate: of Adam.
        seed: of the inner layer; the outer one starts at 0, which is plain OPTW.

    Returns:
        The network, and the mean objective before each step.

    Raises:
        SchemaError: a number is out of its range, or a feature is not known.
        StatisticsError: no batch has any advantage.
    """
    for name, value in (("units", units), ("steps", steps)):
        require_range(name, value, 1, 10**6)
    require_range("rate", rate, 1e-9, 1e3)
    hosts = [batch.on_host() for batch in batches if np.any(batch.on_host().advantage)]
    if not hosts:
        raise StatisticsError(
            f"a weight network needs batches with advantages; of {len(batches)} none has any. Take "
            "groups with right and wrong responses."
        )
    seen = np.concatenate([columns(host, features) for host in hosts])
    network = WeightNetwork(
        seen.mean(axis=0),
        np.maximum(seen.std(axis=0), TINY),
        np.random.default_rng(seed).normal(
            0, 1 / np.sqrt(seen.shape[1]), (seen.shape[1] + 1, units)
        ),
        np.zeros(units + 1),
        optw or Optw(),
        features,
    )
    moments = [(np.zeros_like(layer), np.zeros_like(layer)) for layer in _layers(network)]
    course = np.empty(steps)
    for step in range(steps):
        found = [step_gradient(network, host) for host in hosts]
        course[step] = np.mean([value for value, _ in found])
        slopes = [
            np.mean(parts, axis=0) for parts in zip(*(_layers(g) for _, g in found), strict=True)
        ]
        moved, moments = _climbed(_layers(network), slopes, moments, rate=rate, step=step + 1)
        network = network._replace(inner=moved[0], outer=moved[1])
    return network, course


def _layers(network: WeightNetwork) -> tuple[np.ndarray, np.ndarray]:
    return network.inner, network.outer


def _climbed(
    layers: Sequence[np.ndarray],
    slopes: Sequence[np.ndarray],
    moments: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    rate: float,
    step: int,
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """One step of Adam upward."""
    one, two = MOMENTS
    kept = [
        (one * m + (1 - one) * slope, two * v + (1 - two) * slope**2)
        for slope, (m, v) in zip(slopes, moments, strict=True)
    ]
    moved = [
        layer + rate * (m / (1 - one**step)) / (np.sqrt(v / (1 - two**step)) + TINY)
        for layer, (m, v) in zip(layers, kept, strict=True)
    ]
    return moved, kept


def _widened(values: Float64[np.ndarray, "token column"]) -> np.ndarray:
    """With a column of ones, for offsets."""
    return np.concatenate([values, np.ones((len(values), 1))], axis=1)
