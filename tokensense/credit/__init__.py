"""Credit rules: evidence -> credit per token, one function for analysis and training.

Never imports torch: tensors are recognized by what they can do. `CATALOGUE` names every rule; each
family lies in its own module and lists its rules there.
"""

from tokensense.credit import (
    contrastive,
    cscr,
    modulation,
    optimal,
    outcome,
    self_distillation,
    uncertainty,
)
from tokensense.credit.base import Credit

CATALOGUE: dict[str, Credit] = {
    **outcome.RULES,
    **cscr.RULES,
    **self_distillation.RULES,
    **contrastive.RULES,
    **optimal.RULES,
    **uncertainty.RULES,
    **modulation.RULES,
}

__all__ = ["CATALOGUE"]
