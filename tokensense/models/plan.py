"""Which tokens are fed to a model in one go, and which row of its output predicts which token.

Reads  branches: a context and the response whose tokens are scored after it, as ids.
Gives  Branch, predictor_rows, padded_batches.

The last token of a response is never fed: nothing after it is asked for. The shift by one between
"row of the output" and "token that it predicts" happens in `predictor_rows` and nowhere else.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class Branch(NamedTuple):
    """A context, never empty (the first token needs a predictor), and the response after it."""

    context: tuple[int, ...]
    response: tuple[int, ...]


class PaddedBatch(NamedTuple):
    """Sequences side by side, short ones filled up on the right.

    branches: index of each sequence's branch. ids: (sequence, position), what is fed.
    rows: for each response token of all branches, in order, its predictor in `ids` flattened.
    """

    branches: tuple[int, ...]
    ids: Int64[np.ndarray, "sequence position"]
    rows: Int64[np.ndarray, " token"]


def predictor_rows(
    fed: Int64[np.ndarray, " fed"], responses: int
) -> Int64[np.ndarray, " responses"]:
    """Rows of the output that predict the response tokens of one branch.

    Args:
        fed: where each fed token of the branch lies: its context and its response but for the last
            token.
        responses: response tokens.

    Example:
        A context of 3 and a response of 2 tokens, fed at 10 to 13: the last context token predicts
        the first response token, which predicts the second.

        >>> predictor_rows(np.arange(10, 14), 2)
        array([12, 13])
    """
    return fed[len(fed) - responses :]


def padded_batches(branches: Sequence[Branch], *, tokens: int) -> list[PaddedBatch]:
    """Branches of non-empty responses, longest first, in batches of at most `tokens` positions.

    A branch longer than `tokens` is a batch of its own. Causal models see no difference between
    right padding and nothing, so no mask is needed.
    """
    order = [i for i, branch in enumerate(branches) if branch.response]
    order.sort(key=lambda i: -len(branches[i].context) - len(branches[i].response))
    batches: list[PaddedBatch] = []
    while order:
        width = len(_fed(branches[order[0]]))
        count = max(1, tokens // width)
        batches.append(_padded(branches, order[:count], width))
        order = order[count:]
    return batches


def _padded(branches: Sequence[Branch], chosen: list[int], width: int) -> PaddedBatch:
    ids = np.zeros((len(chosen), width), dtype=np.int64)
    rows = []
    for line, i in enumerate(chosen):
        fed = _fed(branches[i])
        ids[line, : len(fed)] = fed
        where = np.arange(line * width, line * width + len(fed))
        rows.append(predictor_rows(where, len(branches[i].response)))
    return PaddedBatch(tuple(chosen), ids, np.concatenate(rows))


def _fed(branch: Branch) -> tuple[int, ...]:
    """What the model must see of a branch."""
    return branch.context + branch.response[:-1]
