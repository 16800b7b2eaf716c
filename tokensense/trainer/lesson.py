"""What an update learns from, and the forward pass over it.

Reads  branches, credit of every token, a policy.
Gives  Lesson; teach, the one of a distillation; hidden_states, log_probs.
Sign   credit positive: the token is made likelier.

Rollouts are fed padded on the right, some at a time, by the scorer's own `hidden_rows` and `head`.
Several processes feed a share each, by length, so that they end at about the same time.

Source: design section 9.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from tokensense.models.head import head_of, log_statistics
from tokensense.models.plan import Branch, Row, plan_padded
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.scorer import evaluation
from tokensense.models.selfcheck import hidden_rows
from tokensense.segments import offsets
from tokensense.trainer.config import Distillation, TrainConfig
from tokensense.trainer.distillation import Teacher

Flat = Float32[np.ndarray, " token"]


class Lesson(NamedTuple):
    """What an update learns from.

    Attributes:
        branches: prompt and response of each rollout.
        credit: of every response token, back to back.
        old: logp of every token when it was sampled, nats; None where there is one update only.
        reference: logp of every token under the policy that the run began from; None without KL.
        teacher: of a distillation, whose divergence joins the loss.
    """

    branches: Sequence[Branch]
    credit: Float64[np.ndarray, " token"]
    old: Flat | None = None
    reference: Flat | None = None
    teacher: Teacher | None = None

    @property
    def length(self) -> Int64[np.ndarray, " rollout"]:
        """Tokens of each rollout."""
        return np.array([len(branch.response) for branch in self.branches], dtype=np.int64)

    def tokens(self, rollouts: Int64[np.ndarray, " part"]) -> Int64[np.ndarray, " token"]:
        """Places of the tokens of some rollouts, in the order given."""
        bound = offsets(self.length)
        runs = (np.arange(bound[i], bound[i + 1]) for i in rollouts)
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def part(self, rollouts: Int64[np.ndarray, " part"]) -> "Lesson":
        """Some of the rollouts, in the order given."""
        own = self.tokens(rollouts)
        return Lesson(
            [self.branches[i] for i in rollouts.tolist()],
            self.credit[own],
            None if self.old is None else self.old[own],
            None if self.reference is None else self.reference[own],
            None if self.teacher is None else self.teacher.at(torch.from_numpy(own)),
        )


def teach(
    teacher: Policy,
    branches: Sequence[Branch],
    told: Mapping[int, Branch],
    *,
    form: Distillation,
    config: TrainConfig,
    processes: Processes = ALONE,
) -> Lesson:
    """The lesson of a distillation: the rollouts that the teacher can be told about.

    The teacher's states of all tokens are kept, tokens x hidden size float32. Its head is copied
    where it could change between the updates of a step.

    Args:
        teacher: as it is now.
        branches: of all rollouts, as the student reads them.
        told: rollout -> prompt in which the teacher is told, and the same response.
        form: of the divergence.
        config: size of a row, updates of a step.
        processes: that feed a share each.
    """
    places = sorted(told)
    lesson = Lesson([branches[place] for place in places], np.zeros(0))
    size = int(lesson.length.sum())
    hidden = torch.zeros(size, teacher.model.config.get_text_config().hidden_size)
    read = [told[place] for place in places]
    with torch.no_grad(), evaluation(teacher.model):
        for row, states in hidden_states(teacher, read, config, processes=processes):
            hidden[torch.from_numpy(row.slots)] = states.float().cpu()
    hidden = processes.summed(hidden)
    head = head_of(teacher.model)
    if config.epochs * config.updates > 1:
        bias = None if head.bias is None else head.bias.detach().clone()
        head = head._replace(weight=head.weight.detach().clone(), bias=bias)
    return lesson._replace(credit=np.zeros(size), teacher=Teacher(hidden, head, form))


def hidden_states(
    policy: Policy,
    branches: Sequence[Branch],
    config: TrainConfig,
    *,
    processes: Processes = ALONE,
) -> Iterator[tuple[Row, Tensor]]:
    """Rows of rollouts, and the hidden states that predict their response tokens.

    Args:
        policy: reads.
        branches: prompts and responses.
        config: size of a row.
        processes: of which this one feeds its own share.

    Yields:
        A row, whose `slots` are the places of its tokens, and states (token, hidden).
    """
    order = sorted(range(len(branches)), key=lambda place: -branches[place].fed)
    own = np.array(sorted(order[processes.rank :: processes.size]), np.int64)
    places = Lesson(branches, np.zeros(0)).tokens(own)
    chosen = [branches[place] for place in own.tolist()]
    for stream in plan_padded(chosen, tokens_per_row=config.tokens_per_row):
        for row, hidden in hidden_rows(policy.model, stream):
            yield row._replace(slots=places[row.slots]), hidden


def log_probs(
    policy: Policy,
    branches: Sequence[Branch],
    config: TrainConfig,
    *,
    processes: Processes = ALONE,
) -> Flat:
    """Log-probability of every response token by the trainer's own forward pass, nats.

    Args:
        policy: scores.
        branches: prompts and responses.
        config: temperature and size of a row.
        processes: that feed a share each.
    """
    found = np.zeros(sum(len(branch.response) for branch in branches), dtype=np.float32)
    head = head_of(policy.model)
    with torch.no_grad():
        for row, hidden in hidden_states(policy, branches, config, processes=processes):
            targets = torch.from_numpy(row.targets).to(policy.device)
            statistics = log_statistics(hidden, targets, head, temperature=config.temperature)
            found[row.slots] = statistics.logp.cpu().numpy()
    return np.asarray(processes.summed(torch.from_numpy(found)).numpy())
