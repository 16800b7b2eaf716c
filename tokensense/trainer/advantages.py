"""Rewards with overlong shaping, and the advantages made of them.

Reads  rewards, lengths and groups of the rollouts of a step; the fields of a config.
Gives  shaped_rewards, step_advantages.
Sign   advantage positive: better than its group.

Advantages themselves are those of `credit.advantages`: analysis and training read one function.

Source: overlong shaping, equation 13 of DAPO, arXiv:2503.14476. Departure: there a response past
the limit gets -1; here none goes past it, and one that reaches it gets -1.
"""

import numpy as np
from jaxtyping import Float64, Int

from tokensense.credit.advantages import ADVANTAGES
from tokensense.trainer.config import TrainConfig


def shaped_rewards(
    reward: Float64[np.ndarray, " rollout"],
    length: Int[np.ndarray, " rollout"],
    config: TrainConfig,
) -> Float64[np.ndarray, " rollout"]:
    """The reward, less up to 1 over the last `overlong` tokens before the limit.

    Args:
        reward: of each rollout; NaN stays NaN.
        length: tokens of each.
        config: `overlong` and `max_new_tokens`.

    Example:
        >>> config = TrainConfig(max_new_tokens=10, overlong=4)
        >>> shaped_rewards(np.ones(4), np.array([5, 6, 8, 10]), config).tolist()
        [1.0, 1.0, 0.5, 0.0]
    """
    if config.overlong == 0:
        return reward
    past = length - (config.max_new_tokens - config.overlong)
    return reward - np.clip(past / config.overlong, 0.0, 1.0)


def step_advantages(
    reward: Float64[np.ndarray, " rollout"],
    group: Int[np.ndarray, " rollout"],
    config: TrainConfig,
) -> Float64[np.ndarray, " rollout"]:
    """Advantage of each rollout in the form of the config; exactly 0 where a group is all alike.

    Args:
        reward: finite.
        group: label of each rollout's problem.
        config: `advantage`, `eps` and `ddof`.

    Raises:
        SchemaError: a reward is not finite.
    """
    form = ADVANTAGES[config.advantage]
    if config.advantage == "group_std":
        return np.asarray(form(reward, group, eps=config.eps, ddof=config.ddof))
    return np.asarray(form(reward, group))
