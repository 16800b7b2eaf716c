"""Which tokens are fed to a model in one go, and which row of its output predicts which token.

Reads  branches: a context and the response whose tokens are scored after it, as ids.
Gives  Branch, Segment, Row, plan_rows, plan_padded, predictor_rows; loads, what a plan costs.
Source tries of contexts as in AReaL's tree attention. Ours: the trie is streamed depth first
       through rows of equal size, and the keys and values of the path that goes on are carried
       over. So no token is fed twice, a row may end anywhere, and its size is free to be what is
       fastest.

A long trie is cut into streams of about `STREAM` rows that know nothing of each other, so that
cores can work side by side; what lies above a cut is fed again.

Contexts that begin alike are fed once: prompt -> condition -> response. The last token of a
response is never fed: nothing after it is asked for. The shift by one between "row of the output"
and "token that it predicts" happens in `predictor_rows` and nowhere else. A plan depends on the set
of branches and the size of a row, not on the order of branches.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

Range = tuple[int, int]

STREAM = 4  # rows; at four, feeding a prompt of 130 tokens again costs 3 %


class Branch(NamedTuple):
    """A context, never empty (the first token needs a predictor), and the response after it."""

    context: tuple[int, ...]
    response: tuple[int, ...]

    @property
    def fed(self) -> int:
        """Tokens that the model must see: all but the last of the response."""
        return len(self.context) + len(self.response) - 1


class Load(NamedTuple):
    """What a stream costs: tokens fed, (query, key) pairs of a layer, tokens scored."""

    fed: int
    pairs: int
    scored: int


class Segment(NamedTuple):
    """Tokens [start, end) that follow each other, and what lies before them on their path.

    before: ranges from the root down, neighbours joined; together they are the path before `start`.
    """

    start: int
    end: int
    before: tuple[Range, ...]


class Row(NamedTuple):
    """What one forward pass is fed, and what is asked of its output.

    ids, positions: what is fed, and where each token stands on its own path. rows: places in `ids`,
    flattened, that predict something. targets: the ids that they predict. slots: where the answers
    belong among the response tokens of all branches, back to back. segments: of a packed row; empty
    where branches lie side by side. keep: what the next row needs of this one. Segments and `keep`
    count from the first carried token: those are [0, carried), then come the fed ones.
    """

    ids: Int64[np.ndarray, "sequence position"]
    positions: Int64[np.ndarray, "sequence position"]
    rows: Int64[np.ndarray, " token"]
    targets: Int64[np.ndarray, " token"]
    slots: Int64[np.ndarray, " token"]
    segments: tuple[Segment, ...] = ()
    keep: tuple[Range, ...] = ()


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


def plan_rows(branches: Sequence[Branch], *, tokens_per_row: int) -> list[list[Row]]:
    """The trie of all branches, depth first, in streams of rows of `tokens_per_row` tokens.

    Rows of a stream belong together: each carries what the next needs, so they are fed in this
    order; the last may be shorter. Streams are independent and about equally long. How many there
    are depends on the tokens alone, never on the machine: an even number once there is work for it.
    The stream with the longest path comes first: if memory does not suffice, it shows at once.
    """
    parts = _parts(branches, tokens_per_row)
    parts.sort(key=lambda part: -max(branches[i].fed for i in part))
    return [_stream(branches, part, tokens_per_row) for part in parts]


def loads(branches: Sequence[Branch], *, tokens_per_row: int) -> list[Load]:
    """What each stream of `plan_rows` costs, in no order; rows are not made."""
    found = []
    for part in _parts(branches, tokens_per_row):
        chosen = [branches[i] for i in part]
        shared = [0, *map(_shared, chosen[:-1], chosen[1:])]
        ends = [branch.fed for branch in chosen]
        pairs = sum(e * (e + 1) - s * (s + 1) for e, s in zip(ends, shared, strict=True)) // 2
        scored = sum(len(branch.response) for branch in chosen)
        found.append(Load(sum(ends) - sum(shared), pairs, scored))
    return found


def _parts(branches: Sequence[Branch], size: int) -> list[list[int]]:
    """Branches that ask for something, sorted, in streams of about equally many tokens."""
    order = sorted((i for i, b in enumerate(branches) if b.response), key=lambda i: branches[i])
    if not order:
        return []
    chosen = [branches[i] for i in order]
    shared = [0, *map(_shared, chosen[:-1], chosen[1:])]
    new = [branch.fed - s for branch, s in zip(chosen, shared, strict=True)]
    total = sum(new)
    count = 1 if total <= 2 * size else 2 * -(-total // (2 * STREAM * size))
    parts: list[list[int]] = [[] for _ in range(count)]
    for i, tokens, until in zip(order, new, accumulate(new), strict=True):
        # By the middle of what a branch adds.
        parts[(2 * until - tokens) * count // (2 * total + 1)].append(i)
    return [part for part in parts if part]


def _stream(branches: Sequence[Branch], order: list[int], tokens_per_row: int) -> list[Row]:
    """One stream: the trie of some sorted branches in rows that carry on."""
    segments, ids, paths = _trie([branches[i] for i in order])
    positions = np.concatenate([np.arange(s.end - s.start) + _length(s.before) for s in segments])
    rows, targets, slots = _questions(branches, order, paths)
    pieces = _pieces(segments, tokens_per_row)
    plan = []
    for number, here in enumerate(pieces):
        start, end = here[0].start, here[-1].end
        carried = _length(_cut(here[0].before, start))
        following = pieces[number + 1][0].before if number + 1 < len(pieces) else ()
        low, high = np.searchsorted(rows, (start, end))
        plan.append(
            Row(
                ids=ids[None, start:end],
                positions=positions[None, start:end],
                rows=rows[low:high] - start,
                targets=targets[low:high],
                slots=slots[low:high],
                segments=tuple(_local(piece, start, carried) for piece in here),
                keep=_shifted(following, start, carried),
            )
        )
    return plan


def plan_padded(branches: Sequence[Branch], *, tokens_per_row: int) -> list[list[Row]]:
    """Rows of whole branches side by side, short ones filled up on the right, longest first.

    Each row is a stream of its own. Causal models see no difference between padding on the right
    and nothing: no mask is needed. A branch longer than `tokens_per_row` is a row of its own.
    """
    order = [i for i, branch in enumerate(branches) if branch.response]
    order.sort(key=lambda i: (-branches[i].fed, branches[i]))
    plan: list[list[Row]] = []
    while order:
        width = branches[order[0]].fed
        count = max(1, tokens_per_row // width)
        chosen, order = order[:count], order[count:]
        ids = np.zeros((len(chosen), width), dtype=np.int64)
        paths: list[tuple[Range, ...]] = []
        for line, i in enumerate(chosen):
            fed = _fed(branches[i])
            ids[line, : len(fed)] = fed
            paths.append(((line * width, line * width + len(fed)),))
        positions = np.broadcast_to(np.arange(width), ids.shape).copy()
        plan.append([Row(ids, positions, *_questions(branches, chosen, paths))])
    return plan


def _trie(
    chosen: list[Branch],
) -> tuple[list[Segment], Int64[np.ndarray, " fed"], list[tuple[Range, ...]]]:
    """Segments of the trie of sorted branches, what they feed, and the path of each branch."""
    shared = [0, *map(_shared, chosen[:-1], chosen[1:])]
    ids: list[int] = []
    segments: list[Segment] = []
    paths: list[tuple[Range, ...]] = []
    waiting: list[tuple[int, int, tuple[Range, ...]]] = [(0, len(chosen), ())]
    while waiting:
        low, high, path = waiting.pop()
        alone = high - low == 1
        fed = _fed(chosen[low])
        depth, until = _length(path), len(fed) if alone else min(shared[low + 1 : high])
        if until > depth:
            segments.append(Segment(len(ids), len(ids) + until - depth, path))
            ids.extend(fed[depth:until])
            path = _joined(path, (segments[-1].start, segments[-1].end))
        if alone:
            paths.append(path)
        else:
            cuts = [low, *(i for i in range(low + 1, high) if shared[i] == until), high]
            waiting.extend((a, b, path) for a, b in reversed(list(pairwise(cuts))))
    return segments, np.array(ids, dtype=np.int64), paths


def _questions(
    branches: Sequence[Branch], chosen: Sequence[int], paths: Sequence[tuple[Range, ...]]
) -> tuple[Int64[np.ndarray, " token"], Int64[np.ndarray, " token"], Int64[np.ndarray, " token"]]:
    """Rows, targets and slots of the branches chosen, which were fed at `paths`; by row."""
    first = np.cumsum([0, *(len(branch.response) for branch in branches)])
    rows, targets, slots = [], [], []
    for i, path in zip(chosen, paths, strict=True):
        response = branches[i].response
        where = np.concatenate([np.arange(*part) for part in path])
        rows.append(predictor_rows(where, len(response)))
        targets.append(np.asarray(response, dtype=np.int64))
        slots.append(np.arange(first[i], first[i + 1]))
    joined = [np.concatenate(parts) for parts in (rows, targets, slots)]
    order = np.argsort(joined[0], kind="stable")
    return joined[0][order], joined[1][order], joined[2][order]


def _pieces(segments: Sequence[Segment], size: int) -> list[list[Segment]]:
    """Segments cut where a row ends, by row; a piece's path includes what was cut off before it."""
    rows: list[list[Segment]] = [[] for _ in range(-(-segments[-1].end // size))]
    for start, end, before in segments:
        inner = range((start // size + 1) * size, end, size)
        for a, b in pairwise([start, *inner, end]):
            path = before if a == start else _joined(before, (start, a))
            rows[a // size].append(Segment(a, b, path))
    return rows


def _local(piece: Segment, start: int, carried: int) -> Segment:
    """A piece, counted from the first carried token of the row that begins at `start`."""
    shift = carried - start
    return Segment(piece.start + shift, piece.end + shift, _shifted(piece.before, start, carried))


def _shifted(path: tuple[Range, ...], start: int, carried: int) -> tuple[Range, ...]:
    """A path in a row's own count. What lies before the row is the front of what it carries."""
    front = _length(_cut(path, start))
    found: tuple[Range, ...] = ((0, front),) if front else ()
    for low, high in path:
        if high > start:
            found = _joined(found, (max(low, start) - start + carried, high - start + carried))
    return found


def _cut(path: tuple[Range, ...], start: int) -> tuple[Range, ...]:
    """The part of a path that lies before `start`."""
    return tuple((low, min(high, start)) for low, high in path if low < start)


def _joined(path: tuple[Range, ...], part: Range) -> tuple[Range, ...]:
    """The path with one more range; neighbours become one."""
    if path and path[-1][1] == part[0]:
        return (*path[:-1], (path[-1][0], part[1]))
    return (*path, part)


def _length(path: tuple[Range, ...]) -> int:
    """Tokens on a path."""
    return sum(high - low for low, high in path)


def _fed(branch: Branch) -> tuple[int, ...]:
    """What the model must see of a branch."""
    return branch.context + branch.response[:-1]


def _shared(first: Branch, second: Branch) -> int:
    """Tokens with which both contexts begin. Responses are never shared: each is scored."""
    one, two = first.context, second.context
    if one == two:  # the many responses of one prompt
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))
