"""OPSD and SDPO over the vocabulary: be like the policy that is told more, at every token.

Reads  hidden states of the student and of the teacher at the same tokens, their heads.
Gives  Teacher; divergences, the loss of each token; follow, which moves the teacher.
Sign   a divergence is >= 0, nats, and is minimized; the reward plays no part.

The teacher reads the same response behind a prompt that gives the reference solution (OPSD) or a
right response of the group (SDPO). Log-probabilities are made some rows at a time, and once more
in the backward pass: ENTRIES of them, about eight times over, so that no tensor of tokens x
vocabulary is ever made. An update costs one forward pass more, under the longer prompts.

Departures: both papers' prompts are replaced by the project's conditions, of which the first that a
response may be told is taken; OPSD's temperature of 1.1 is the run's own; SDPO's importance factor
is left out (it is 1 in the first update of a step). Responses that cannot be told are left out of
the loss and of what it is divided by, as in SDPO's release, and counted.

Source: arXiv:2601.18734 (OPSD); arXiv:2601.20802 (SDPO); methods/cscr.md 2.1, 2.2 (grade: code).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tokensense.credit.self_distillation import divergence
from tokensense.models.head import Head, log_probabilities
from tokensense.models.policy import Policy
from tokensense.trainer.config import Distillation

ENTRIES = 2**23  # of log-probabilities at a time, 32 MB


class Teacher(NamedTuple):
    """The policy that was told more, at the tokens of an update.

    Attributes:
        hidden: states that predict each token.
        head: that makes log-probabilities of them.
        form: of the divergence.
    """

    hidden: Float32[Tensor, "token hidden"]
    head: Head
    form: Distillation

    def at(self, tokens: Tensor) -> "Teacher":
        """Some of the tokens, in the order given."""
        return self._replace(hidden=self.hidden[tokens])


def divergences(
    hidden: Float[Tensor, "token hidden"], head: Head, teacher: Teacher, *, temperature: float
) -> Float32[Tensor, " token"]:
    """Divergence of each token's distribution from the teacher's, nats; differentiable.

    Args:
        hidden: the student's states at the teacher's tokens.
        head: of the student.
        teacher: on the same device; no gradient flows into it.
        temperature: of both.
    """

    def some(student: Tensor, told: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = log_probabilities(told, teacher.head, temperature=temperature)
        own = log_probabilities(student, head, temperature=temperature)
        if 0 < teacher.form.top < own.shape[1]:
            own, wanted = _told_apart(own, wanted, teacher.form.top)
        found: Tensor = divergence(own, wanted, alpha=teacher.form.alpha)
        return found

    rows = max(1, ENTRIES // head.weight.shape[0])
    states = teacher.hidden.to(hidden.device, hidden.dtype)
    pairs = zip(torch.split(hidden, rows), torch.split(states, rows), strict=True)
    return torch.cat([checkpoint(some, *pair, use_reentrant=False) for pair in pairs])


def _told_apart(own: Tensor, wanted: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The student's likeliest entries, and one for all others, of both."""
    places = own.detach().topk(top, dim=-1).indices
    return _with_rest(own, places), _with_rest(wanted, places)


def _with_rest(rows: Tensor, places: Tensor) -> Tensor:
    others = rows.scatter(1, places, -math.inf)  # 1 - sum would lose the digits of a small rest
    return torch.cat([rows.gather(1, places), others.logsumexp(dim=-1, keepdim=True)], dim=-1)


def follow(teacher: Policy, policy: Policy, rate: float) -> None:
    """Move the teacher's weights a share of the way to the policy's.

    Args:
        teacher: changed, unless it is the policy itself or `rate` is 0.
        policy: after a step.
        rate: in [0, 1].
    """
    if teacher is policy or rate == 0:
        return
    with torch.no_grad():
        pairs = zip(teacher.model.parameters(), policy.model.parameters(), strict=True)
        for mine, theirs in pairs:
            mine.lerp_(theirs, rate)
