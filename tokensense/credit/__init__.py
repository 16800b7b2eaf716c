"""Credit rules: evidence -> credit per token, one function for analysis and training.

Never imports torch: tensors are recognized by what they can do.
"""

from tokensense.credit.base import Credit, by_weight
from tokensense.credit.cscr import (
    CommonOnly,
    ContrastOnly,
    Cscr,
    EntropyMatched,
    GradientNormMatched,
    Placebo,
    Shuffled,
    SurprisalMatched,
)
from tokensense.credit.outcome import uniform

_CSCR = "arXiv:2607.27888; properties of the weight second-hand (D), exact form inferred (I)"
_CONTROL = "own control of arXiv:2607.27888 (methods/cscr.md section 5.8)"
_VERDICT = frozenset({"z_pos", "z_neg"})
_PLACEBO = frozenset({"placebo_pos", "placebo_neg"})

CATALOGUE: dict[str, Credit] = {
    "uniform": by_weight(
        uniform, needs=frozenset(), source="GRPO, arXiv:2402.03300; certain", budget="rollout"
    ),
    "cscr": by_weight(Cscr(), needs=_VERDICT, source=_CSCR, budget="rollout"),
    "cscr_shuffled": by_weight(
        Shuffled(), needs=_VERDICT | {"key"}, source=_CONTROL, budget="rollout"
    ),
    "cscr_surprisal": by_weight(
        SurprisalMatched(), needs=_VERDICT | {"logp"}, source=_CONTROL, budget="rollout"
    ),
    "cscr_entropy": by_weight(
        EntropyMatched(), needs=_VERDICT | {"entropy"}, source=_CONTROL, budget="rollout"
    ),
    "cscr_gradient_norm": by_weight(
        GradientNormMatched(), needs=_VERDICT | {"distance"}, source=_CONTROL, budget="rollout"
    ),
    "cscr_common": by_weight(CommonOnly(), needs=_VERDICT, source=_CONTROL, budget="rollout"),
    "cscr_contrast": by_weight(ContrastOnly(), needs=_VERDICT, source=_CONTROL, budget="rollout"),
    "cscr_placebo": by_weight(
        Placebo(), needs=_VERDICT | _PLACEBO, source=_CONTROL, budget="rollout"
    ),
}

__all__ = ["CATALOGUE"]
