"""Credit by outcome: of the response alone, of its steps, of planted truth, of answers re-scored.

Reads  lengths and advantages; steps, planted truth, or what a change of one token or step does to
       the answer.
Gives  uniform, step, Random, Oracle, vine, SpanDrop, Oar, OarGradient, Nthr, Ktae.
Sign   weights are >= 0, so that the advantage keeps its sign; `vine` replaces and `ktae` adds.

`uniform` is plain GRPO, what every other rule is measured against; `random` and `oracle` bound what
weights can do.

Source   methods/cscr.md 2.8 (OAR), 2.9 (Beyond Uniform Credit), 2.11 (VinePPO); methods/delta.md
         section 7 (NTHR, KTAE); `oracle` and `random` from the project's notes on assays.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device
from jaxtyping import Bool, Float64, Int64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import clipped, drawn, mean_one
from tokensense.segments import (
    broadcast,
    segment_index,
    segment_max,
    segment_mean,
    segment_min,
    segment_normalize,
    segment_quantile,
)

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`


def uniform(evidence: Evidence) -> Float64[Array, " token"]:
    """Weight 1 for every token: plain GRPO, credit = advantage of the rollout.

    Departures none. Grade: certain. It is uniform under every setting; it has none.

    Args:
        evidence: `length` and `advantage`.
    """
    xp, advantage = array_namespace(evidence.advantage), evidence.advantage
    one = xp.ones(advantage.shape[0], dtype=xp.float64, device=device(advantage))
    return broadcast(one, evidence.length)


def step(evidence: Evidence) -> Float64[Array, " token"]:
    """Every step of a response gets the same credit, whatever its length: w = T / (steps n_step).

    Tokens in no step count as one step more. Grade: own. Never uniform by a setting; uniform where
    all steps are as long.

    Args:
        evidence: `step`.
    """
    host = evidence.on_host()
    owner = segment_index(host.length)
    pairs = np.stack([owner, host["step"].astype(np.int64)])
    _, which, size = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    return evidence.place(segment_normalize(1.0 / size[which.reshape(-1)], host.length))


@dataclass(frozen=True)
class Random:
    """w = T x / sum of x, x drawn from Exp(1): what a spread of weights does by itself.

    Grade: own. Never uniform by a setting.

    Attributes:
        seed: with `key` it decides a rollout's weights, wherever the rollout stands.
    """

    seed: int = 0

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `key`.
        """
        return segment_normalize(
            drawn(evidence, seed=self.seed, law="exponential"), evidence.length
        )


@dataclass(frozen=True)
class Oracle:
    """All credit of a side on its planted tokens, no weight above `cap`; the rest on its others.

    Over tokens of responses with A > 0: planted tokens get w = min(cap, mass / planted mass), mass
    the sum of |A| over the side's tokens and planted mass that over its planted ones; what the cap
    leaves over goes to the side's other tokens in equal weights. The same for A < 0. So the sum of
    positive credit is that of uniform, and that of negative credit too. A side without a planted
    token, or without others, is uniform; so are responses with A = 0. Grade: own. Uniform at cap 1.

    Attributes:
        cap: largest weight, >= 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    cap: float = 50.0

    def __post_init__(self) -> None:
        require_range("cap", self.cap, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `planted`.
        """
        host = evidence.on_host()
        advantage, planted = host.spread().astype(np.float64), host["planted"]
        weights = np.ones(planted.size)
        for side in (advantage > 0, advantage < 0):
            size = np.abs(advantage)
            marked, rest = (size[side & chosen].sum() for chosen in (planted, ~planted))
            if self.cap == 1 or marked == 0 or rest == 0:
                continue
            top = min(self.cap, (marked + rest) / marked)
            weights[side & planted] = top
            weights[side & ~planted] = max(marked + rest - top * marked, 0.0) / rest
        return evidence.place(weights)


def vine(evidence: Evidence) -> Float64[Array, " token"]:
    """VinePPO: credit = V after the token's step - V before it, V the mean reward of continuations.

    Departures: none; K = 9 continuations in the paper. Grade: second-hand (2.11). Never uniform:
    the advantage of the response is not used.

    Args:
        evidence: `value_gain`.
    """
    return evidence["value_gain"]


@dataclass(frozen=True)
class SpanDrop:
    """Beyond Uniform Credit: w ~ .5 + slope i, i = .2 + drop of the answer's log p, into [.5, 1].

    i is min-max scaled within the response; where it does not vary it is 1. Departures: weights of
    format tokens (x .1) and of the answer (1.5) are left out, for they need labels of regions; the
    weight multiplies the advantage, not the KL term. Grade: code (2.9). Uniform at slope 0.

    Attributes:
        slope: >= 0; 1.5 in the code.

    Raises:
        SchemaError: a setting is out of its range.
    """

    slope: float = 1.5

    def __post_init__(self) -> None:
        require_range("slope", self.slope, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `span_drop`.
        """
        # The .2 that every token has falls out of the min-max scaling.
        share = _min_max(evidence["span_drop"], evidence, flat=1.0)
        return segment_normalize(0.5 + self.slope * (0.5 + share / 2), evidence.length)


@dataclass(frozen=True)
class Oar:
    """OAR: a score of how much the answer hangs on the token, cut low and raised high.

    n = min-max of log(1 + I) within the response, q its quantile; n < q: max(n / q, least), else
    1 + beta (n - q) / (1 - q); scaled to mean 1. Departures: the release overwrites the level of
    the quantile by its value after the first sample; here it stays. A response whose I does not
    vary is uniform. Grade: code (2.8). Uniform at quantile 0 and beta 0.

    Attributes:
        quantile: level, in [0, 1].
        beta: what the top gains, >= 0.
        least: smallest weight before scaling, in [0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    quantile: float = 0.25
    beta: float = 1.0
    least: float = 0.1

    def __post_init__(self) -> None:
        require_range("quantile", self.quantile, 0.0, 1.0)
        require_range("beta", self.beta, 0.0, math.inf)
        require_range("least", self.least, 0.0, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: what the score needs.
        """
        return mean_one(self.shaped(self.score(evidence), evidence), evidence.length)

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """KL of the answer with the token masked (OAR-P), nats, >= 0.

        Args:
            evidence: `answer_kl`.
        """
        return evidence["answer_kl"]

    def shaped(
        self, score: Float64[Array, " token"], evidence: Evidence
    ) -> Float64[Array, " token"]:
        """Weights before scaling, in [least, 1 + beta], no unit.

        Args:
            score: I >= 0; rounding below 0 counts as 0.
            evidence: for the lengths.
        """
        xp = array_namespace(score)
        one = xp.ones_like(score)
        n = _min_max(xp.log1p(xp.maximum(score, 0 * one)), evidence, flat=0.0)
        level = broadcast(segment_quantile(n, evidence.length, q=self.quantile), evidence.length)
        low = xp.maximum(n / xp.where(level > 0, level, one), self.least * one)
        above = (n - level) / xp.where(level < 1, 1 - level, one)
        return xp.where(n < level, low, 1 + self.beta * above)


class OarGradient(Oar):
    """OAR by gradients (OAR-G): the same shaping of |sum of gradient x embedding|.

    The gradient of a KL vanishes at its minimum: with one draw of noise the score is tiny and hangs
    on the draw (2.8). Average several. Settings and grade as `Oar`.
    """

    def score(self, evidence: Evidence) -> Float64[Array, " token"]:
        """|sum of gradient x embedding|, >= 0.

        Args:
            evidence: `answer_saliency`.
        """
        return evidence["answer_saliency"]


@dataclass(frozen=True)
class Nthr:
    """NTHR: less blame for wrong tokens that look like right ones: w = 2 |1/2 - accuracy| there.

    A token of a wrong response (A < 0) is spared if its influence on the group's right responses
    exceeds beta times the smallest, over right responses, of the mean influence of their own
    tokens. Departures: beta is not given; 1 is ours. Grade: second-hand. Never uniform by a
    setting; weights lie in [0, 1].

    Attributes:
        beta: >= 0.

    Raises:
        SchemaError: a setting is out of its range.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        require_range("beta", self.beta, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `right_influence` and `group`.
        """
        host = evidence.on_host()
        influence, length = host["right_influence"], host.length
        mean = segment_mean(influence, length)
        weights = np.ones(influence.size)
        for group in np.unique(host["group"]):
            members = host["group"] == group
            right = members & (host.advantage > 0)
            known = mean[right & (length > 0)]
            if not known.size:
                continue
            wrong = broadcast(members & (host.advantage < 0), length)
            spared = wrong & (influence > self.beta * known.min())
            weights[spared] = 2 * abs(0.5 - right.sum() / members.sum())
        return evidence.place(weights)


@dataclass(frozen=True)
class Ktae:
    """KTAE: A + strength k, k = direction (1 - p of Fisher's exact test + information gain) / 2.

    Of the 2 x 2 table of a token id in a group: in the response or not, right or not (A > 0 or
    < 0). The direction is that of the shares of right and of wrong responses that hold it; the
    gain is in bits. Departures: the paper combines the same three in a way that is not known here.
    Grade: inferred. Uniform at strength 0.

    Attributes:
        strength: in units of the advantage.

    Raises:
        SchemaError: a setting is out of its range.
    """

    strength: float = 0.5

    def __post_init__(self) -> None:
        require_range("strength", self.strength, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, in units of the advantage.

        Args:
            evidence: `token_id` and `group`.
        """
        host = evidence.on_host()
        owner = segment_index(host.length)
        key = np.zeros(owner.size)
        for group in np.unique(host["group"]):
            members = host["group"] == group
            right, wrong = members & (host.advantage > 0), members & (host.advantage < 0)
            inside = members[owner]
            key[inside] = _key_values(
                host["token_id"][inside], owner[inside], right=right, wrong=wrong
            )
        return evidence.spread() + self.strength * evidence.place(key)


def _min_max(
    values: Float64[Array, " token"], evidence: Evidence, *, flat: float
) -> Float64[Array, " token"]:
    """Scale each rollout into [0, 1]; `flat` where its values are equal."""
    xp = array_namespace(values)
    low, high = (
        broadcast(extreme(values, evidence.length), evidence.length)
        for extreme in (segment_min, segment_max)
    )
    varies = high > low
    scaled = (values - low) / xp.where(varies, high - low, xp.ones_like(high))
    return xp.where(varies, clipped(scaled, 0.0, 1.0), flat * xp.ones_like(high))


def _key_values(
    token_id: Int64[np.ndarray, " token"],
    owner: Int64[np.ndarray, " token"],
    *,
    right: Bool[np.ndarray, " rollout"],
    wrong: Bool[np.ndarray, " rollout"],
) -> Float64[np.ndarray, " token"]:
    """Say of each token of one group how much its id tells right responses from wrong ones."""
    ids, which = np.unique(token_id, return_inverse=True)
    held = np.zeros((ids.size, right.size), dtype=bool)
    held[which, owner] = True
    counts = np.stack([(held & right).sum(axis=1), (held & wrong).sum(axis=1)])
    totals = int(right.sum()), int(wrong.sum())
    values = [_key_value(a, b, *totals) for a, b in counts.T.tolist()]
    return np.asarray(values, dtype=np.float64)[which]


@cache
def _key_value(right_with: int, wrong_with: int, right: int, wrong: int) -> float:
    """Direction x (1 - p + gain in bits) / 2 of one table."""
    if not right or not wrong:
        return 0.0
    table = [[right_with, wrong_with], [right - right_with, wrong - wrong_with]]
    held = (right_with + wrong_with) / (right + wrong)
    after = sum(
        weight * _bits(row[0], row[1]) for row, weight in zip(table, (held, 1 - held), strict=True)
    )
    direction = np.sign(right_with / right - wrong_with / wrong)
    return float(direction) * (1 - fisher_p(table) + _bits(right, wrong) - after) / 2


def fisher_p(table: list[list[int]]) -> float:
    """P of Fisher's exact test, two-sided: of all tables of these margins, those no likelier.

    Args:
        table: 2 x 2 counts.
    """
    (a, b), (c, d) = table
    # Numbers of ways to draw the first row, exact integers.
    ways = {k: math.comb(a + c, k) * math.comb(b + d, a + b - k) for k in range(a + b + 1)}
    return sum(n for n in ways.values() if n <= ways[a]) / math.comb(a + b + c + d, a + b)


def _bits(one: int, other: int) -> float:
    """Entropy of a share, bits; 0 of nothing."""
    total = one + other
    return -math.fsum(n / total * math.log2(n / total) for n in (one, other) if n)
