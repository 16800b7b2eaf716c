"""Rules that do more than multiply: entropy gates, lambda ranks, altered clips, baselines.

Reads  log p, entropy, ||onehot - p|| under base; groups, rewards, the gap to a reference policy,
       the ratio of the current policy to the one that sampled.
Gives  Erpo, EpGrpo, Lampo, Htpo, otb.
Sign   credit has the unit of the advantage, or of the reward; its sign may differ from that of
       the advantage.

Each class states its formula, its departures and its grade. None is uniform under any setting.

Source   methods/gcpo_and_optimal_weights.md 2.4 (OTB), 3.2 (EP-GRPO, ERPO), 3.3 (LamPO), 3.4
         (HTPO).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.special import expit

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import top_of
from tokensense.credit.uncertainty import at_position
from tokensense.segments import broadcast, segment_index, segment_mean, segment_quantile

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`


@dataclass(frozen=True)
class Erpo:
    """ERPO: credit = g A + eta g sign(A) s, g = sigmoid(gamma z), z = entropy standardized.

    s = log p - log p of the reference policy, standardized among the group's tokens of the same
    part of their response; z within the group; deviations are those of the population. The factor
    beta of s falls out. Departures: the number of parts is not known; 10 are ours. Grade: inferred
    (formula second-hand). Never uniform: at gamma 0 the gate is 1/2.

    Attributes:
        gamma: steepness of the gate.
        eta: share of the progress signal, in units of the advantage.
        parts: of a response, >= 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    gamma: float = 5.0
    eta: float = 0.2
    parts: int = 10

    def __post_init__(self) -> None:
        require_range("gamma", self.gamma, 0.0, math.inf)
        require_range("eta", self.eta, 0.0, math.inf)
        require_range("parts", self.parts, 1, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, in units of the advantage.

        Args:
            evidence: `entropy`, `drift` and `group`.
        """
        host = evidence.on_host()
        advantage = host.spread()
        group = host["group"][segment_index(host.length)].astype(np.int64)
        gate = expit(self.gamma * _standardized(host["entropy"], group[None]))
        part = np.minimum((self.parts * self.progress(host)).astype(np.int64), self.parts - 1)
        signal = _standardized(host["drift"], np.stack([group, part]))
        return evidence.place(gate * (advantage + self.eta * np.sign(advantage) * signal))

    def progress(self, host: Evidence) -> Float64[np.ndarray, " token"]:
        """How far in its response each token stands, in [0, 1).

        Args:
            host: evidence on the host.
        """
        start = np.cumsum(host.length) - host.length
        position = np.arange(int(host.length.sum())) - broadcast(start, host.length)
        return np.asarray(position / broadcast(host.length, host.length))


class EpGrpo(Erpo):
    """EP-GRPO: ERPO with progress measured by the entropy spent so far, C_t = sum H / total H.

    Departures: no formula of the paper was found; gate, signal and constants are ERPO's, of the
    same authors. Grade: inferred. Settings as `Erpo`.
    """

    def progress(self, host: Evidence) -> Float64[np.ndarray, " token"]:
        """Share of its response's entropy up to each token, in [0, 1]; 0 where there is none.

        Args:
            host: evidence on the host.
        """
        entropy = np.maximum(host["entropy"], 0)
        spent, total = running_sum(entropy, host.length)
        return np.where(total > 0, spent / np.where(total > 0, total, 1), 0.0)


@dataclass(frozen=True)
class Lampo:
    """LamPO: credit = mean over the group's other responses of (R - R') sigmoid(-sign(R - R') d).

    d = (s - s') / tau, s the mean log p of a response's tokens. All tokens of a response get the
    same. Departures: both papers are withdrawn and their formula is not known; this is the form of
    LambdaRank. Grade: inferred. Never uniform: at an infinite tau it is half the leave-one-out
    advantage. A response without tokens has s = 0.

    Attributes:
        tau: nats.

    Raises:
        SchemaError: a setting is out of its range.
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        require_range("tau", self.tau, 1e-3, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, in units of the reward.

        Args:
            evidence: `logp`, `reward` and `group`.
        """
        host = evidence.on_host()
        groups, rewards = host["group"], host["reward"]
        score = np.nan_to_num(segment_mean(host["logp"], host.length), nan=0.0)
        credit = np.zeros(score.size)
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            if members.size < 2:
                continue
            s = score[members]
            gap = rewards[members][:, None] - rewards[members]
            omega = expit(-np.sign(gap) * (s[:, None] - s) / self.tau)
            credit[members] = (gap * omega).sum(axis=1) / (members.size - 1)
        return evidence.place(broadcast(credit, host.length))


class _Side(NamedTuple):
    """Tokens of one row of HTPO's table."""

    hard_right: Bool[np.ndarray, " token"]
    easy_right: Bool[np.ndarray, " token"]
    wrong: Bool[np.ndarray, " token"]
    high: Bool[np.ndarray, " token"]


@dataclass(frozen=True)
class Htpo:
    """HTPO: PPO's clip, altered by how hard the prompt, how good the response, how open the token.

    Credit is the factor of grad log p in the update, the ratio r in it: A r where PPO does not
    clip, 0 where it does. A prompt is hard if less than `hard` of its group is right; open tokens
    are the top `share` of each response by entropy. Open tokens of hard right responses: A r in the
    band, -A (1 + high) above it and -A / r below it; those of wrong ones: A r, and -A (1 - low)
    below the band. The least open `least` of the other tokens of hard right responses, and the most
    open `most` of the open ones of easy right responses, get 0, by quantiles of that set over all
    tokens given at once. Where A < 0 and r > dual: 0. Departures: none known; the reversed signs
    outside of the band are the code's. Grade: code. Never uniform: it clips.

    Attributes:
        hard: accuracy below which a prompt is hard.
        share: of open tokens, in [0, 1].
        least: share of closed tokens that is dropped, in [0, 1].
        most: share of open tokens that is dropped, in [0, 1].
        low: the band starts at 1 - low.
        high: it ends at 1 + high.
        dual: > 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    hard: float = 0.6
    share: float = 0.2
    least: float = 0.006
    most: float = 0.02
    low: float = 0.2
    high: float = 0.28
    dual: float = 10.0

    def __post_init__(self) -> None:
        for name in ("hard", "share", "least", "most", "low"):
            require_range(name, getattr(self, name), 0.0, 1.0)
        require_range("high", self.high, 0.0, math.inf)
        require_range("dual", self.dual, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, in units of the advantage.

        Args:
            evidence: `entropy`, `ratio`, `reward` and `group`.
        """
        host = evidence.on_host()
        advantage, ratio, entropy = host.spread(), host["ratio"], host["entropy"]
        side = self._sides(host)
        credit = self._clipped(advantage, ratio)
        above, below = ratio > 1 + self.high, ratio < 1 - self.low
        open_right, open_wrong = side.hard_right & side.high, side.wrong & side.high
        credit[open_right | open_wrong] = (advantage * ratio)[open_right | open_wrong]
        credit[open_right & above] = -(1 + self.high) * advantage[open_right & above]
        inverse = 1 / np.maximum(ratio, 1e-12)
        credit[open_right & below] = (-advantage * inverse)[open_right & below]
        credit[open_wrong & below] = -(1 - self.low) * advantage[open_wrong & below]
        closed = side.hard_right & ~side.high
        credit[top_of(-entropy, closed, share=self.least)] = 0
        credit[top_of(entropy, side.easy_right & side.high, share=self.most)] = 0
        credit[(advantage < 0) & (ratio > self.dual)] = 0
        return evidence.place(credit)

    def _clipped(
        self, advantage: Float64[np.ndarray, " token"], ratio: Float64[np.ndarray, " token"]
    ) -> Float64[np.ndarray, " token"]:
        """PPO: A r, and 0 where the clip stops the gradient."""
        stopped = np.where(advantage > 0, ratio > 1 + self.high, ratio < 1 - self.low)
        return np.where(stopped, 0.0, advantage * ratio)

    def _sides(self, host: Evidence) -> _Side:
        length, group = host.length, host["group"]
        _, member = np.unique(group, return_inverse=True)
        size = np.bincount(member)
        accuracy = np.bincount(member, weights=host["reward"])[member] / size[member]
        hard = broadcast(accuracy < self.hard, length)
        advantage = host.spread()
        right, high = advantage > 0, _open_tokens(host, self.share)
        return _Side(hard & right, ~hard & right, advantage < 0, high)


def otb(evidence: Evidence) -> Float64[Array, " token"]:
    """OTB: credit = R - B_t, B_t = sum over the group of R W_t / sum of W_t, W_t = sum of e to t.

    e = ||onehot - p||^2. Responses of the group that have a token t take part. A group of one has
    B = 0, and so has the longest response behind the end of the second longest (the code's
    `handle_zero_tail`). Departures: e is that of the policy that sampled, so that no ratio enters.
    Grade: code. Never uniform: the baseline is of a position.

    Args:
        evidence: `distance`, `reward` and `group`.
    """
    host = evidence.on_host()
    energy, _ = running_sum(host["distance"] ** 2, host.length)
    reward = broadcast(host["reward"], host.length)
    count, total, weighted = at_position(
        host, np.stack([np.ones_like(energy), energy, energy * reward])
    )
    shared = (count > 1) & (total > 0)
    baseline = np.where(shared, weighted / np.where(shared, total, 1), 0.0)
    return evidence.place(reward - baseline)


def running_sum(
    values: Float64[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> tuple[Float64[np.ndarray, " token"], Float64[np.ndarray, " token"]]:
    """Sum within each rollout up to and with each token, and the rollout's whole sum.

    Args:
        values: any unit.
        length: tokens per rollout.
    """
    stop = np.cumsum(length)
    parts = [np.cumsum(values[b - n : b]) for b, n in zip(stop, length, strict=True)]
    running = np.concatenate([np.empty(0), *parts])
    last = np.asarray([part[-1] if part.size else 0.0 for part in parts], dtype=np.float64)
    return running, broadcast(last, length)


def _standardized(
    values: Float64[np.ndarray, " token"], labels: Int64[np.ndarray, "label token"]
) -> Float64[np.ndarray, " token"]:
    """(value - mean) / deviation among tokens of equal labels; 0 where they do not vary."""
    _, which = np.unique(labels, axis=1, return_inverse=True)
    which = which.reshape(-1)
    size = np.bincount(which)
    centered = values - (np.bincount(which, weights=values) / size)[which]
    deviation = np.sqrt(np.bincount(which, weights=centered**2) / size)[which]
    # Equal values leave a rounding error behind, which must not be blown up.
    varies = deviation > 1e-12 * np.abs(values)
    return np.where(varies, centered / np.where(varies, deviation, 1.0), 0.0)


def _open_tokens(evidence: Evidence, share: float) -> Bool[np.ndarray, " token"]:
    """Which tokens lie in the top share of their response by entropy."""
    entropy, length = evidence["entropy"], evidence.length
    found = entropy >= broadcast(segment_quantile(entropy, length, q=1 - share), length)
    return np.asarray(found)
