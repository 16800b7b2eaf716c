"""What stands for a token's gradient where the gradient itself is too large: seen at the head.

Reads  a Policy and branches.
Gives  head_view: for every response token the vector that enters the head, log p, the gradient of
       log p with respect to that vector, and on request onehot - p over the vocabulary.
Sign   a gradient points to where the sampled token becomes likelier.

    hidden gradient  W[y] - sum_j p_j W[j], j all tokens, or the likeliest with p renormalized

The row proxy (1 - p) h is `credit.delta.row_gradient` of the first two; residual and hidden are the
factors of the gradient of the whole head. A scale or softcap of the head is left out, as in the
published proxies. Passes: one.

Source: arXiv:2605.21467, appendix F; methods/delta.md section 2.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32

from tokensense.errors import SchemaError
from tokensense.models.head import head_of, logits_of
from tokensense.models.plan import Branch, plan_padded
from tokensense.models.policy import Policy
from tokensense.models.scorer import evaluation, require_scorable
from tokensense.models.selfcheck import hidden_rows

LARGEST_RESIDUAL = 2**28  # numbers: a gigabyte


class HeadView(NamedTuple):
    """One row a response token, branches back to back.

    hidden: what enters the head. logp: nats. hidden_gradient: of log p by `hidden`. residual:
    onehot - p, no columns where it was not asked for.
    """

    hidden: Float32[np.ndarray, "token hidden"]
    logp: Float32[np.ndarray, " token"]
    hidden_gradient: Float32[np.ndarray, "token hidden"]
    residual: Float32[np.ndarray, "token vocabulary"]


def head_view(
    policy: Policy,
    branches: Sequence[Branch],
    *,
    top: int | None = None,
    residual: bool = False,
    tokens_per_row: int = 1024,
) -> HeadView:
    """See the module.

    Args:
        policy: scored in evaluation mode.
        branches: contexts and responses.
        top: only so many of the likeliest tokens in the hidden gradient; None for all.
        residual: give onehot - p too.
        tokens_per_row: most padded tokens in one pass.

    Raises:
        SchemaError: the residual would not fit into a gigabyte.
        PolicyError: a branch cannot be scored by the policy.
    """
    require_scorable(policy, branches)
    tokens, head = sum(len(b.response) for b in branches), head_of(policy.model)
    width, size = head.weight.shape
    if residual and tokens * width > LARGEST_RESIDUAL:
        raise SchemaError(
            f"onehot - p needs at most {LARGEST_RESIDUAL} numbers; {tokens} tokens x {width} of "
            "vocabulary are more. Give fewer branches at a time."
        )
    found = HeadView(
        np.empty((tokens, size), np.float32),
        np.empty(tokens, np.float32),
        np.empty((tokens, size), np.float32),
        np.empty((tokens, width if residual else 0), np.float32),
    )
    with evaluation(policy.model), torch.inference_mode():
        for stream in plan_padded(branches, tokens_per_row=tokens_per_row):
            for row, hidden in hidden_rows(policy.model, stream):
                targets = torch.from_numpy(row.targets).to(policy.device)[:, None]
                logp = logits_of(hidden, head, 0, width).log_softmax(-1)
                found.hidden[row.slots] = hidden.float().cpu().numpy()
                found.logp[row.slots] = logp.gather(1, targets)[:, 0].cpu().numpy()
                if residual:
                    left = -logp.exp()
                    left.scatter_add_(1, targets, torch.ones_like(left[:, :1]))
                    found.residual[row.slots] = left.cpu().numpy()
                if top is not None and top < width:
                    least = logp.topk(top, dim=-1).values[:, -1:]
                    logp = logp.masked_fill(logp < least, -torch.inf).log_softmax(-1)
                mean = logp.exp() @ head.weight.float()
                gradient = head.weight[targets[:, 0]].float() - mean
                found.hidden_gradient[row.slots] = gradient.cpu().numpy()
    return found
