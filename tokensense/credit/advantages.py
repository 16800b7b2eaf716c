"""Advantages of whole responses: how much better than the other responses to the same problem.

Reads  `reward` (rollout), any unit; `group` (rollout), equal for rollouts of one problem.
Gives  advantages (rollout), in the library, on the device and in the dtype of `reward`.
Sign   positive: better than the mean of its group.

A group of equal rewards, a group of one among them, gets exactly 0: it says nothing about which
response is better, and a rounding error divided by a tiny deviation must not say it either. Rewards
that are not decided (NaN) are refused; the caller leaves them out and counts them.

Defaults   TRL divides by the deviation with ddof 1 plus eps 1e-4 (`scale_rewards`); verl and DelTA
           take ddof 1 and eps 1e-6, and give a group of one its reward as it is (departure: 0
           here). The GRPO form is (R - mean) / (std + eps); Dr. GRPO leaves the deviation out.
Source     GRPO, arXiv:2402.03300; Dr. GRPO, arXiv:2503.20783; leave-one-out, arXiv:2402.14740;
           constants as read in code: methods/delta.md section 1, notes/engineering.md section 6.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, to_device
from jaxtyping import Float, Float64, Int64, Integer, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_max, segment_mean, segment_min, segment_sum

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
EPS = 1e-4
DDOF = 1


class _Centered(NamedTuple):
    """Rewards minus the mean of their group, sorted by group; 0 where a group does not vary."""

    deviation: Float64[Array, " rollout"]
    size: Int64[np.ndarray, " group"]
    back: Int64[Array, " rollout"]  # where each rollout stands in `deviation`

    def place(self, per_group: Shaped[np.ndarray, " group"]) -> Float64[Array, " rollout"]:
        """Bring a number a group to the rollouts, in their library and on their device."""
        xp = array_namespace(self.deviation)
        flat = broadcast(np.asarray(per_group, dtype=np.float64), self.size)
        return xp.asarray(flat, device=device(self.deviation))

    def give(self, values: Float64[Array, " rollout"], like: Array) -> Float[Array, " rollout"]:
        """Put values in the order and dtype of the rewards."""
        xp = array_namespace(values)
        return xp.astype(xp.take(values, self.back), like.dtype, copy=False)


def group_std(
    reward: Float[Array, " rollout"],
    group: Integer[Array, " rollout"],
    *,
    eps: float = EPS,
    ddof: int = DDOF,
) -> Float[Array, " rollout"]:
    """(R - mean) / (std + eps) within each group, no unit.

    Args:
        reward: of each rollout, finite.
        group: of each rollout.
        eps: added to the deviation.
        ddof: the deviation divides squares by the size of the group minus this.

    Raises:
        SchemaError: rewards are not finite, or `group` is not one label a rollout.

    Example:
        >>> group_std(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0, 0, 0, 1]), eps=1e-6).round(6)
        array([ 1.154699, -0.577349, -0.577349,  0.      ])
    """
    centered = _centered(reward, group)
    xp = array_namespace(centered.deviation)
    squares = segment_sum(centered.deviation**2, centered.size)
    divisor = np.maximum(centered.size - ddof, 1)
    std = xp.sqrt(broadcast(squares, centered.size) / centered.place(divisor))
    scale = xp.where(std > 0, std + eps, xp.ones_like(std))
    return centered.give(centered.deviation / scale, reward)


def group_mean(
    reward: Float[Array, " rollout"], group: Integer[Array, " rollout"]
) -> Float[Array, " rollout"]:
    """R - mean within each group (Dr. GRPO), in the unit of the reward. Arguments as `group_std`.

    Raises:
        SchemaError: rewards are not finite, or `group` is not one label a rollout.

    Example:
        >>> group_mean(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1])).tolist()
        [0.5, -0.5, 0.0]
    """
    centered = _centered(reward, group)
    return centered.give(centered.deviation, reward)


def leave_one_out(
    reward: Float[Array, " rollout"], group: Integer[Array, " rollout"]
) -> Float[Array, " rollout"]:
    """R - mean of the others of its group, in the unit of the reward. Arguments as `group_std`.

    Raises:
        SchemaError: rewards are not finite, or `group` is not one label a rollout.

    Example:
        >>> leave_one_out(np.array([1.0, 0.0, 0.0]), np.array([0, 0, 0])).tolist()
        [1.0, -0.5, -0.5]
    """
    centered = _centered(reward, group)
    # R - (n mean - R) / (n - 1) = (R - mean) n / (n - 1); a group of one has deviation 0.
    factor = centered.size / np.maximum(centered.size - 1, 1)
    return centered.give(centered.deviation * centered.place(factor), reward)


def pooled(
    reward: Float[Array, " rollout"], group: Integer[Array, " rollout"]
) -> Float[Array, " rollout"]:
    """R - mean of all rollouts, in the unit of the reward; for stores of one rollout a problem.

    It tells easy problems from hard ones as much as good responses from bad ones: whatever is
    computed from it says `pooled`. Arguments as `group_std`.

    Raises:
        SchemaError: rewards are not finite, or `group` is not one label a rollout.

    Example:
        >>> pooled(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0, 1, 2, 3])).tolist()
        [0.5, -0.5, -0.5, 0.5]
    """
    return group_mean(reward, array_namespace(group).zeros_like(group))


ADVANTAGES: dict[str, Callable[..., Array]] = {
    "group_std": group_std,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "pooled": pooled,
}


def _centered(reward: Float[Array, " rollout"], group: Integer[Array, " labels"]) -> _Centered:
    """Check rewards and groups; subtract the group's mean, exactly 0 where rewards are equal."""
    plain = reward.detach() if hasattr(reward, "detach") else reward
    xp = array_namespace(plain)
    wide = xp.astype(plain, xp.float64, copy=False)
    undecided = int(xp.sum(xp.astype(~xp.isfinite(wide), xp.int64)))
    if undecided or group.shape != plain.shape:
        raise SchemaError(
            f"`reward` needs a finite number a rollout and `group` a label for each; {undecided} "
            f"of {plain.shape[0]} rewards are not finite, and there are {group.shape[0]} labels. "
            "Leave undecided rollouts out and count them."
        )
    _, member, size = np.unique(
        np.asarray(to_device(group, "cpu")), return_inverse=True, return_counts=True
    )
    order = np.argsort(member, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    there = device(wide)
    ordered = xp.take(wide, xp.asarray(order, device=there))
    varies = broadcast(segment_max(ordered, size) > segment_min(ordered, size), size)
    deviation = ordered - broadcast(segment_mean(ordered, size), size)
    deviation = xp.where(varies, deviation, xp.zeros_like(deviation))
    return _Centered(deviation, size.astype(np.int64), xp.asarray(back, device=there))
