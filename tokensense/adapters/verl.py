"""verl's advantage estimators with token credit: a function to register, and its registration.

Reads  the tensors that verl hands to an estimator: token_level_rewards and response_mask (B, T),
       index (B,), the group of each response.
Gives  estimator, register.
Sign   verl's: a positive advantage makes the token likelier.

verl calls `fn(token_level_rewards=, response_mask=, index=, config=, **)` and takes (advantages,
returns), both (B, T) (verl-project/verl, trainer/ppo/core_algos.py, `register_adv_est`). It hands
over no log-probabilities: rules that need any have to get them as keywords, named as in `Evidence`,
by whoever calls. Group advantages are as verl's own GRPO: eps 1e-6, ddof 1.

Tested on tensors of the documented shapes, not inside a run of verl.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from tokensense.adapters.matrix import credit_matrix
from tokensense.checks import require_member
from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import group_mean, group_std
from tokensense.errors import MissingExtraError

EPS = 1e-6
Estimator = Callable[..., tuple[Tensor, Tensor]]


def estimator(rule: str, *, by_std: bool = True) -> Estimator:
    """An estimator in verl's form.

    Args:
        rule: name in `tokensense.credit.CATALOGUE`.
        by_std: divide by the group's deviation (GRPO); else the mean is taken off only (Dr. GRPO).

    Returns:
        A function of verl's keywords. It raises SchemaError where the rule needs evidence that is
        not among them.

    Raises:
        SchemaError: an unknown rule.
    """
    require_member("rule", rule, CATALOGUE)
    chosen = CATALOGUE[rule]

    def credit(
        *,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: np.ndarray,
        config: object = None,
        **evidence: Any,  # noqa: ANN401 (whatever verl or the caller hands over)
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, both (B, T); equal, as in verl's GRPO."""
        del config
        mask = response_mask.bool()
        _, group = np.unique(np.asarray(index).astype(str), return_inverse=True)
        reward = token_level_rewards.sum(-1)
        groups = reward.new_tensor(group.tolist()).long()
        whole = group_std(reward, groups, eps=EPS) if by_std else group_mean(reward, groups)
        given = {name: value for name, value in evidence.items() if name in chosen.needs}
        found = credit_matrix(chosen, whole, mask, evidence=given)
        return found, found

    return credit


def register(rule: str, *, name: str | None = None, by_std: bool = True) -> str:
    """Register an estimator with verl, for `algorithm.adv_estimator`.

    Args:
        rule: name in `tokensense.credit.CATALOGUE`.
        name: under which verl knows it; None for `tokensense_<rule>`.
        by_std: see `estimator`.

    Returns:
        The name.

    Raises:
        MissingExtraError: verl is not installed.
        SchemaError: an unknown rule.
    """
    made = estimator(rule, by_std=by_std)
    try:
        from verl.trainer.ppo.core_algos import register_adv_est
    except ImportError as cause:
        raise MissingExtraError(
            "registering an estimator needs verl, which is not installed: see its own "
            "documentation. `estimator` works without."
        ) from cause
    chosen = name or f"tokensense_{rule}"
    register_adv_est(chosen)(made)
    return chosen
