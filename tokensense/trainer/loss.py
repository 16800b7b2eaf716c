"""The loss of policy gradients, token by token, and what the sum over tokens is divided by.

Reads  log-probabilities of sampled tokens now, when sampled and under the reference; credit.
Gives  token_shares, token_terms; the loss of an update is sum_t share_t * loss_t.
Sign   credit positive: the token is made likelier. The loss is minimized. KL in nats.

    r_t    = exp(logp_t - old_t)
    loss_t = - min(r_t c_t, clip(r_t, 1 - low, 1 + high) c_t)  [+ coefficient * k3_t]

with c_t the credit of the token, less coefficient * k1_t under `k1`. Since every token brings its
own share, how an update is cut into passes changes neither the loss nor the gradient.

k1 stands with the credit, not in the loss: the gradient of a log-ratio has mean 0 over samples, so
that k1 as a term of the loss would hold nothing in place.

Source: arXiv:2402.03300 (GRPO), 2503.14476 (DAPO), 2503.20783 (Dr. GRPO); compared with TRL's
`_compute_loss` in tests/trainer/test_trl.py. Plain reference: tests/reference/trainer.py.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from tokensense.errors import SchemaError
from tokensense.segments import broadcast
from tokensense.trainer.config import Objective


class Terms(NamedTuple):
    """What each token brings; (token,) each.

    loss: to be weighed by the share. ratio: r_t. clipped_low, clipped_high: the limit below or
    above decides, so that the token has no gradient. kl: of the form asked for, 0 for none.
    kl_cut: its log-ratio was beyond the clamp.
    """

    loss: Float[Tensor, " token"]
    ratio: Float[Tensor, " token"]
    clipped_low: Bool[Tensor, " token"]
    clipped_high: Bool[Tensor, " token"]
    kl: Float[Tensor, " token"]
    kl_cut: Bool[Tensor, " token"]


def token_shares(
    length: Int[np.ndarray, " rollout"], objective: Objective, *, most: int
) -> Float64[np.ndarray, " token"]:
    """What each token's loss is multiplied by, no unit.

    Args:
        length: tokens of each rollout of the update; one without tokens counts as a response.
        objective: its normalizer.
        most: tokens that a response can have at most, for `constant`.
    """
    sizes = np.asarray(length, dtype=np.int64)
    count = max(len(sizes), 1)
    if objective.normalizer == "token":
        each = np.full(len(sizes), 1.0 / max(int(sizes.sum()), 1))
    elif objective.normalizer == "sequence":
        each = 1.0 / (np.maximum(sizes, 1) * count)
    else:
        each = np.full(len(sizes), 1.0 / (count * most))
    return np.asarray(broadcast(each, sizes))


def token_terms(
    logp: Float[Tensor, " token"],
    *,
    credit: Float[Tensor, " token"],
    objective: Objective,
    old: Float[Tensor, " token"] | None = None,
    reference: Float[Tensor, " token"] | None = None,
) -> Terms:
    """Loss of each token; gradients flow through `logp` alone.

    Args:
        logp: of the sampled token under the policy that is trained, nats.
        credit: of the token.
        objective: clipping and KL.
        old: logp when the step began; None: as it is now, so that every ratio is 1.
        reference: logp under the policy that the run began from; needed by a KL.

    Raises:
        SchemaError: a KL is asked for and there is no reference.
    """
    before = logp.detach() if old is None else old
    ratio = torch.exp(logp - before)
    kl, cut = _kl(logp, before, reference, objective)
    if objective.kl == "k1":
        credit = credit - objective.kl_coefficient * kl
    limited = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    loss = -torch.minimum(ratio * credit, limited * credit)
    if objective.kl == "k3":
        loss = loss + objective.kl_coefficient * kl
    return Terms(
        loss=loss,
        ratio=ratio.detach(),
        clipped_low=(ratio < 1 - objective.clip_low) & (credit < 0),
        clipped_high=(ratio > 1 + objective.clip_high) & (credit > 0),
        kl=kl.detach(),
        kl_cut=cut,
    )


def _kl(
    logp: Tensor, before: Tensor, reference: Tensor | None, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Estimate of the KL divergence at each token, and whether its log-ratio was cut."""
    if objective.kl == "none":
        return torch.zeros_like(before), torch.zeros_like(before, dtype=torch.bool)
    if reference is None:
        raise SchemaError(
            f"the KL `{objective.kl}` needs the reference's log-probabilities; none came. Score "
            "the same tokens with the policy that the run began from."
        )
    most = objective.kl_clamp
    away = before - reference if objective.kl == "k1" else reference - logp
    within = away.clamp(-most, most)
    kl = within if objective.kl == "k1" else within.exp() - within - 1
    return kl, away.detach().abs() > most
