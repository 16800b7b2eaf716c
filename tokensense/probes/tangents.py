"""Derivatives of log-probabilities along a direction in the parameters, one padded row at a time.

Reads  a Policy, a Row, parameters and a tangent by name.
Gives  LogProbs, plain (what a derivative needs around it), forward_mode, difference, fitting_step;
       unflat, squared_norm.
Sign   positive: a step along the tangent makes the token likelier; nats per unit of the parameters.

Source see `gradients`, which says where each may be used and what it costs.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokensense.models.head import head_of
from tokensense.models.plan import Row
from tokensense.models.policy import Policy
from tokensense.models.scorer import evaluation
from tokensense.models.selfcheck import hidden_rows

# Mean |change of log p|, nats, that a step of central differences should make.
STEP_LOW, STEP, STEP_HIGH = 0.01, 0.015, 0.02


def squared_norm(gradient: Float[Tensor, "..."]) -> float:
    """||gradient||^2, added up in float64."""
    return float(gradient.double().square().sum())


class LogProbs(nn.Module):
    """The policy's model, asked for the log-probabilities of the targets of one padded row."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model

    def forward(self, row: Row) -> Float[Tensor, " token"]:
        """Log-probabilities of the targets of a row, nats."""
        ((_, hidden),) = hidden_rows(self.model, [row])
        head = head_of(self.model)
        # As `logits_of`, which works in place: that cannot be differentiated.
        raw = functional.linear(hidden, head.weight, head.bias)
        logits = head.scale * raw.to(torch.promote_types(raw.dtype, torch.float32))
        if math.isfinite(head.softcap):
            logits = head.softcap * torch.tanh(logits / head.softcap)
        targets = torch.from_numpy(row.targets).to(logits.device)
        chosen = logits.gather(1, targets[:, None])[:, 0]
        return chosen - logits.logsumexp(-1)


def forward_mode(
    model: nn.Module, values: dict[str, Tensor], tangent: dict[str, Tensor], row: Row
) -> Tensor:
    """Derivative of the log-probabilities of a row along a tangent."""

    def logp(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (row,), tie_weights=True)  # type: ignore[no-any-return]

    found: Tensor = jvp(logp, (values,), (tangent,))[1]
    return found


def difference(
    model: nn.Module,
    values: dict[str, Tensor],
    tangent: dict[str, Tensor],
    row: Row,
    *,
    step: float,
) -> Tensor:
    """The same by a central difference."""
    ends = []
    for sign in (1.0, -1.0):
        moved = {name: value + sign * step * tangent[name] for name, value in values.items()}
        ends.append(functional_call(model, moved, (row,), tie_weights=True))
    found: Tensor = (ends[0] - ends[1]) / (2.0 * step)
    return found


def fitting_step(
    model: nn.Module, values: dict[str, Tensor], tangent: dict[str, Tensor], row: Row
) -> float:
    """A step that moves log p by STEP_LOW to STEP_HIGH nats on average, found on one row."""
    norms = [
        math.sqrt(sum(squared_norm(part) for part in parts.values())) for parts in (values, tangent)
    ]
    if norms[1] == 0.0:
        return 1.0
    step = 1e-3 * norms[0] / norms[1]
    for _ in range(12):
        change = float(difference(model, values, tangent, row, step=step).abs().mean()) * step
        if STEP_LOW <= change <= STEP_HIGH:
            break
        # Far out the change is no longer linear in the step: not more than tenfold at once.
        step *= min(max(STEP / change if change else 10.0, 0.1), 10.0)
    return step


@contextmanager
def plain(policy: Policy) -> Iterator[None]:
    """Evaluation mode, the one SDPA kernel that can be differentiated in any way, no row left out.

    An embedding with a padding index drops that row's gradient going backward, and only there.
    """
    embedding: Any = policy.model.get_input_embeddings()
    padding = getattr(embedding, "padding_idx", None)
    embedding.padding_idx = None
    try:
        with evaluation(policy.model), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        embedding.padding_idx = padding


def unflat(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """A flat direction as tensors of the parameters' shapes."""
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {
        name: part.view_as(value).to(value.dtype)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
