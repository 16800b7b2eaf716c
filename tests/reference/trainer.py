"""Slow plain reference of the trainer: one response, one token at a time, in float64.

Imports torch and transformers only, nothing of tokensense.
"""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


def reference_advantages(
    rewards: Sequence[float], groups: Sequence[int], *, form: str, eps: float, ddof: int
) -> list[float]:
    """Of each response, by the other responses to the same problem."""
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        same = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(same) / len(same)
        if form == "group_mean":
            found.append(reward - mean)
        elif form == "leave_one_out":
            rest = (sum(same) - reward) / (len(same) - 1)
            found.append(reward - rest)
        else:
            std = math.sqrt(sum((r - mean) ** 2 for r in same) / (len(same) - ddof))
            found.append((reward - mean) / (std + eps) if std > 0 else 0.0)
    return found


def reference_log_probs(
    model: PreTrainedModel, context: Sequence[int], response: Sequence[int], temperature: float
) -> list[torch.Tensor]:
    """log p of each response token, with gradient, by the model's own head."""
    ids = torch.tensor([[*context, *response]])
    logits = model(input_ids=ids, use_cache=False).logits[0].double() / temperature
    return [
        torch.log_softmax(logits[place - 1], dim=-1)[token]
        for place, token in enumerate(response, start=len(context))
    ]


def reference_loss(
    logps: Sequence[Sequence[torch.Tensor]],
    credits: Sequence[Sequence[float]],
    *,
    olds: Sequence[Sequence[float]] | None = None,
    references: Sequence[Sequence[float]] | None = None,
    normalizer: str = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl: str = "none",
    kl_coefficient: float = 0.0,
    kl_clamp: float = 20.0,
    most: int = 1,
) -> torch.Tensor:
    """The loss of one update."""
    total = torch.zeros((), dtype=torch.float64)
    tokens = sum(len(response) for response in logps)
    for i, response in enumerate(logps):
        for t, logp in enumerate(response):
            old = logp.detach() if olds is None else torch.tensor(olds[i][t]).double()
            credit = credits[i][t]
            if kl == "k1":
                away = float(old) - references[i][t]
                credit = credit - kl_coefficient * max(-kl_clamp, min(kl_clamp, away))
            ratio = torch.exp(logp - old)
            limited = ratio
            if float(ratio.detach()) < 1 - clip_low:
                limited = torch.tensor(1 - clip_low, dtype=torch.float64)
            if float(ratio.detach()) > 1 + clip_high:
                limited = torch.tensor(1 + clip_high, dtype=torch.float64)
            plain, clipped = ratio * credit, limited * credit
            loss = -(plain if float(plain.detach()) <= float(clipped.detach()) else clipped)
            if kl == "k3":
                away = references[i][t] - logp
                if abs(float(away.detach())) > kl_clamp:
                    away = torch.tensor(math.copysign(kl_clamp, float(away.detach()))).double()
                loss = loss + kl_coefficient * (torch.exp(away) - away - 1)
            if normalizer == "token":
                total = total + loss / tokens
            elif normalizer == "sequence":
                total = total + loss / len(response) / len(logps)
            else:
                total = total + loss / (len(logps) * most)
    return total
