"""Log-probabilities that a policy gives to fixed responses after given contexts.

Reads  a Policy and branches (context ids, response ids).
Gives  score, scoring_settings, Scores.
Sign   logp <= 0, entropy >= 0, nats; a response of n tokens gives n values, the first one included.
Source checked against `tests/reference/scorer.py`: one sequence at a time, softmax in float64.

What is computed together decides the last bits of a score: same settings and branches, same bytes;
others, within 1e-4 nats in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from transformers import PreTrainedModel

from tokensense.checks import require_range
from tokensense.errors import PolicyError
from tokensense.models.head import ROWS, TILE, LogStatistics, head_of, log_statistics
from tokensense.models.plan import Branch, Row, plan_padded
from tokensense.models.policy import Policy

TOKENS_PER_ROW = 4096


class Scores(NamedTuple):
    """Statistics of each response token of one branch; (token,) each, never NaN.

    logp: log-probability of the token, nats. entropy: of the distribution it comes from, nats.
    p_max: largest probability in it. p_square_sum: sum of its squared probabilities.
    """

    logp: Float32[np.ndarray, " token"]
    entropy: Float32[np.ndarray, " token"]
    p_max: Float32[np.ndarray, " token"]
    p_square_sum: Float32[np.ndarray, " token"]


def score(
    policy: Policy,
    branches: Sequence[Branch],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    temperature: float = 1.0,
    progress: Callable[[int], None] | None = None,
) -> list[Scores]:
    """Statistics of every response token, in the order of `branches`.

    Args:
        policy: scored in evaluation mode; training mode is put back afterwards.
        branches: contexts and responses as ids. An empty response gives empty arrays.
        tokens_per_row: most tokens in one forward pass; a longer branch goes alone.
        temperature: logits are divided by it.
        progress: called with the number of response tokens done since the last call.

    Raises:
        PolicyError: a context is empty, a branch is longer than the policy's context, or an id is
            outside its head.
        SchemaError: `temperature` or `tokens_per_row` is not positive.
    """
    require_range("temperature", temperature, 1e-6, 1e6)
    require_range("tokens_per_row", tokens_per_row, 1, 2**40)
    _require_scorable(policy, branches)
    found: list[Scores | None] = [None] * len(branches)
    with _evaluation(policy.model), torch.inference_mode():
        for row in plan_padded(branches, tokens_per_row=tokens_per_row):
            statistics = _score_row(policy, branches, row, temperature)
            for i, part in _per_branch(statistics, branches, row.branches):
                found[i] = part
            if progress is not None:
                progress(len(row.rows))
    nothing = np.empty(0, dtype=np.float32)
    return [Scores(nothing, nothing, nothing, nothing) if s is None else s for s in found]


def scoring_settings(
    policy: Policy, *, tokens_per_row: int = TOKENS_PER_ROW, temperature: float = 1.0
) -> dict[str, str | int | float]:
    """All that decides the bytes of a score besides policy and branches; for provenance."""
    return {
        "path": "padded",
        "tokens_per_row": tokens_per_row,
        "temperature": temperature,
        "head_rows": ROWS,
        "head_tile": TILE,
        "dtype": policy.dtype,
        "device": policy.device.type,
        "torch": torch.__version__,
    }


def _score_row(
    policy: Policy, branches: Sequence[Branch], row: Row, temperature: float
) -> LogStatistics:
    """Statistics of the row's response tokens, back to back."""
    ids = torch.from_numpy(row.ids).to(policy.device)
    positions = torch.from_numpy(row.positions).to(policy.device)
    hidden = _hidden(policy.model, ids, positions).flatten(0, 1)
    rows = torch.from_numpy(row.rows).to(policy.device)
    targets = [np.asarray(branches[i].response, dtype=np.int64) for i in row.branches]
    wanted = torch.from_numpy(np.concatenate(targets)).to(policy.device)
    return log_statistics(hidden[rows], wanted, head_of(policy.model), temperature=temperature)


def _hidden(
    model: PreTrainedModel, ids: Tensor, positions: Tensor
) -> Float[Tensor, "batch position hidden"]:
    """The backbone's output after its final norm.

    No mask: causal, and padding only on the right.
    """
    out = model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def _per_branch(
    statistics: LogStatistics, branches: Sequence[Branch], order: Sequence[int]
) -> Iterator[tuple[int, Scores]]:
    """Cut what lies back to back into branches."""
    arrays = [part.cpu().numpy() for part in statistics]
    start = 0
    for i in order:
        end = start + len(branches[i].response)
        yield i, Scores(*(array[start:end].copy() for array in arrays))
        start = end


@contextmanager
def _evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode (no dropout); modules that were in training mode are put back."""
    training = [module for module in model.modules() if module.training]
    model.eval()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _require_scorable(policy: Policy, branches: Sequence[Branch]) -> None:
    """Check every branch before the first forward pass."""
    width = policy.head_width
    for number, branch in enumerate(branches):
        length = len(branch.context) + len(branch.response)
        if not branch.context:
            raise PolicyError(
                f"A branch needs a context token before its response; branch {number} has none. "
                "Begin its context with the beginning-of-text token or the prompt."
            )
        if length > policy.context_length:
            raise PolicyError(
                f"A branch needs at most {policy.context_length} tokens for {policy.name}; branch "
                f"{number} has {len(branch.context)} of context and {len(branch.response)} of "
                "response. "
                "Leave it out or choose a policy with a longer context."
            )
        for part, ids in (("context", branch.context), ("response", branch.response)):
            if ids and not 0 <= min(ids) <= max(ids) < width:
                place = next(i for i, token in enumerate(ids) if not 0 <= token < width)
                raise PolicyError(
                    f"Ids need to lie in [0, {width}), the head of {policy.name}; branch {number}, "
                    f"{part} "
                    f"token {place} is {ids[place]}. Check that ids and policy belong together."
                )
