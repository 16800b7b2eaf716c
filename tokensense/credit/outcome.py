"""Credit by outcome alone: what every other rule is measured against.

Reads  nothing but lengths and advantages.
Gives  uniform, a weight function.
Sign   as the advantage.
"""

from typing import Any, TypeAlias

from array_api_compat import array_namespace, device
from jaxtyping import Float64

from tokensense.credit.base import Evidence
from tokensense.segments import broadcast

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
