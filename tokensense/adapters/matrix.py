"""Credit of padded batches: (B, T) in, (B, T) out, the same rule as everywhere.

Reads  advantages and masks of a trainer's batch, evidence over (B, T).
Gives  credit_matrix.
Sign   credit has the unit of the advantage; padded places get 0.
"""

from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from tokensense.credit.base import Credit
from tokensense.credit.evidence import Evidence
from tokensense.errors import SchemaError


def credit_matrix(
    rule: Credit,
    advantages: Float[Tensor, " _rollout"],
    mask: Bool[Tensor, "rollout time"],
    *,
    written: Bool[Tensor, "rollout time"] | None = None,
    evidence: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "rollout time"]:
    """Credit of every token of a batch.

    Args:
        rule: of `credit.CATALOGUE`, or one of your own.
        advantages: of the responses as wholes.
        mask: where response tokens are; they need not be on one side.
        written: where the policy wrote the token itself, inside `mask`; None: everywhere. Other
            tokens (tool output) get 0 and change nothing.
        evidence: by the names of `Evidence`: (B, T) a token, or (B,) a rollout. What lies outside
            `mask` is not looked at.

    Returns:
        Credit in the dtype of the advantages; 0 outside `mask`.

    Raises:
        SchemaError: shapes disagree, or the rule needs evidence that was not given.
    """
    shapes = {name: tuple(array.shape) for name, array in (evidence or {}).items()}
    wrong = [name for name, shape in shapes.items() if shape not in (mask.shape, mask.shape[:1])]
    if wrong or advantages.shape != mask.shape[:1]:
        raise SchemaError(
            f"a batch of shape {tuple(mask.shape)} needs advantages ({mask.shape[0]},) and "
            f"evidence of the batch's shape or one a rollout; advantages have "
            f"{tuple(advantages.shape)}, "
            f"evidence {shapes}. Keep one number a response, and pad evidence as the batch."
        )
    flat = {
        name: array[mask] if array.ndim == mask.ndim else array
        for name, array in (evidence or {}).items()
    }
    given = Evidence(
        length=mask.sum(1),
        advantage=advantages,
        mask=None if written is None else written[mask],
        **flat,
    )
    found = advantages.new_zeros(mask.shape)
    found[mask] = rule.assign(given)
    return found
