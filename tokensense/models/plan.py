"""Which tokens are fed to a model in one go, and which row of its output predicts which token.

Reads  branches: a context and the response whose tokens are scored after it, as ids.
Gives  Branch, Row, Segment, plan_rows, plan_padded, predictor_rows.
Source trie packing with an ancestor test, as in AReaL's tree attention; here a list of segments,
       each with its ancestors, takes the place of a mask.

Contexts that begin alike are fed once: prompt -> condition -> response. The last token of a
response is never fed: nothing after it is asked for. The shift by one between "row of the output"
and "token that it predicts" happens in `predictor_rows` and nowhere else. A plan depends on the set
of branches and the budget, not on their order.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class Branch(NamedTuple):
    """A context, never empty (the first token needs a predictor), and the response after it."""

    context: tuple[int, ...]
    response: tuple[int, ...]


class Segment(NamedTuple):
    """Packed tokens [start, end) that follow each other, and what lies before them on their path.

    before: packed ranges [start, end) from the root down, back to back the path before `start`.
    """

    start: int
    end: int
    before: tuple[tuple[int, int], ...]


class Row(NamedTuple):
    """What one forward pass is fed.

    branches: indices of the branches scored in it. ids, positions: what is fed, and where each
    token stands on its own path. rows: for each response token of `branches`, in order, its
    predictor in `ids` flattened. segments: of the one packed sequence; empty where branches lie
    side by side.
    """

    branches: tuple[int, ...]
    ids: Int64[np.ndarray, "sequence position"]
    positions: Int64[np.ndarray, "sequence position"]
    rows: Int64[np.ndarray, " token"]
    segments: tuple[Segment, ...]


def predictor_rows(
    fed: Int64[np.ndarray, " fed"], responses: int
) -> Int64[np.ndarray, " responses"]:
    """Rows of the output that predict the response tokens of one branch.

    Args:
        fed: where each fed token of the branch lies: context, and response but for its last token.
        responses: response tokens.

    Example:
        A context of 3 and a response of 2 tokens, fed at 10 to 13: the last context token predicts
        the first response token, which predicts the second.

        >>> predictor_rows(np.arange(10, 14), 2)
        array([12, 13])
    """
    return fed[len(fed) - responses :]


def plan_rows(branches: Sequence[Branch], *, tokens_per_row: int) -> list[Row]:
    """Rows of packed tries, largest first.

    A trie that fits goes into the first row that has room; one too big is split at its first fork,
    and what lies above is fed again in each part. A branch that does not fit goes alone.
    """
    order = sorted((i for i, b in enumerate(branches) if b.response), key=lambda i: branches[i])
    chosen = [branches[i] for i in order]
    shared = [0, *map(_shared, chosen[:-1], chosen[1:])][: len(chosen)]
    length = [len(_fed(branch)) for branch in chosen]
    rows: list[list[int]] = []
    filled: list[int] = []
    for low, high in _units(length, shared, tokens_per_row):
        size = _trie_size(length, shared, low, high)
        for row, members in enumerate(rows):
            # In sorted order the nearest member shares the most.
            again = min(shared[members[-1] + 1 : low + 1])
            if filled[row] + size - again <= tokens_per_row:
                members.extend(range(low, high))
                filled[row] += size - again
                break
        else:
            rows.append(list(range(low, high)))
            filled.append(size)
    packed = [_packed(branches, [order[i] for i in members]) for members in rows]
    return sorted(packed, key=lambda row: -row.ids.size)


def plan_padded(branches: Sequence[Branch], *, tokens_per_row: int) -> list[Row]:
    """Rows of whole branches side by side, short ones filled up on the right, longest first.

    Causal models see no difference between padding on the right and nothing: no mask is needed.
    """
    order = [i for i, branch in enumerate(branches) if branch.response]
    order.sort(key=lambda i: (-len(_fed(branches[i])), branches[i]))
    rows: list[Row] = []
    while order:
        width = len(_fed(branches[order[0]]))
        count = max(1, tokens_per_row // width)
        rows.append(_side_by_side(branches, order[:count], width))
        order = order[count:]
    return rows


def _units(length: list[int], shared: list[int], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of sorted branches whose trie fits into a row, each as large as can be."""
    waiting = [(0, len(length))] if length else []
    while waiting:
        low, high = waiting.pop()
        if high - low == 1 or _trie_size(length, shared, low, high) <= budget:
            yield low, high
        else:
            waiting.extend(reversed(_children(shared, low, high)))


def _trie_size(length: list[int], shared: list[int], low: int, high: int) -> int:
    """Tokens that the trie of a range of sorted branches feeds."""
    return sum(length[low:high]) - sum(shared[low + 1 : high])


def _children(shared: list[int], low: int, high: int) -> list[tuple[int, int]]:
    """Ranges that a range of two or more sorted branches falls into at its first fork."""
    fork = min(shared[low + 1 : high])
    cuts = [low, *(i for i in range(low + 1, high) if shared[i] == fork), high]
    return list(pairwise(cuts))


def _packed(branches: Sequence[Branch], chosen: list[int]) -> Row:
    """The trie of some sorted branches as one sequence, depth first."""
    fed = [_fed(branches[i]) for i in chosen]
    shared = [0, *(_shared(branches[a], branches[b]) for a, b in pairwise(chosen))]
    ids: list[int] = []
    positions: list[int] = []
    rows: list[np.ndarray] = []
    segments: list[Segment] = []
    waiting: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [(0, len(chosen), ())]
    while waiting:
        low, high, before = waiting.pop()
        depth = sum(end - start for start, end in before)
        until = len(fed[low]) if high - low == 1 else min(shared[low + 1 : high])
        path = before
        if until > depth:
            segment = Segment(len(ids), len(ids) + until - depth, before)
            segments.append(segment)
            ids.extend(fed[low][depth:until])
            positions.extend(range(depth, until))
            path = _joined(before, segment)
        if high - low == 1:
            where = np.concatenate([np.arange(*part) for part in path])
            rows.append(predictor_rows(where, len(branches[chosen[low]].response)))
        else:
            children = _children(shared, low, high)
            waiting.extend((a, b, path) for a, b in reversed(children))
    return Row(
        tuple(chosen),
        np.array([ids], dtype=np.int64),
        np.array([positions], dtype=np.int64),
        np.concatenate(rows),
        tuple(segments),
    )


def _joined(before: tuple[tuple[int, int], ...], segment: Segment) -> tuple[tuple[int, int], ...]:
    """The path that ends with a segment; neighbouring ranges become one."""
    if before and before[-1][1] == segment.start:
        return (*before[:-1], (before[-1][0], segment.end))
    return (*before, (segment.start, segment.end))


def _side_by_side(branches: Sequence[Branch], chosen: list[int], width: int) -> Row:
    """Some branches as a right-padded batch."""
    ids = np.zeros((len(chosen), width), dtype=np.int64)
    rows = []
    for line, i in enumerate(chosen):
        fed = _fed(branches[i])
        ids[line, : len(fed)] = fed
        where = np.arange(line * width, line * width + len(fed))
        rows.append(predictor_rows(where, len(branches[i].response)))
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    return Row(tuple(chosen), ids, positions, np.concatenate(rows), ())


def _fed(branch: Branch) -> tuple[int, ...]:
    """What the model must see of a branch."""
    return branch.context + branch.response[:-1]


def _shared(first: Branch, second: Branch) -> int:
    """Tokens with which both contexts begin. Responses are never shared: each is scored."""
    pairs = zip(first.context, second.context, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(first.context), len(second.context)),
    )
