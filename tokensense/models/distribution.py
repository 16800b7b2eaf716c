"""More of the next-token distribution than a score keeps: its top, and how two changes overlap.

Reads  final hidden states, a Head.
Gives  top_log_probs, signal_overlap; both run over the vocabulary in tiles.
Sign   logp <= 0, nats.

No tensor of rows x vocabulary is ever made. Hidden states of scored rows: `scorer.read_rows`.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from tokensense.models.head import ROWS, TILE, Head, logits_of


class TopLogProbs(NamedTuple):
    """The likeliest tokens of each row, falling; what is left is 1 - sum of exp(logp).

    ids: of tokens, (row, top). logp: their log-probabilities, nats, (row, top).
    """

    ids: Int64[Tensor, "row top"]
    logp: Float32[Tensor, "row top"]


def top_log_probs(
    hidden: Float[Tensor, "row hidden"],
    head: Head,
    *,
    top: int,
    temperature: float = 1.0,
    rows: int = ROWS,
    tile: int = TILE,
) -> TopLogProbs:
    """The likeliest tokens of each row and their log-probabilities.

    A pass over the vocabulary of its own, as long as that of `log_statistics`; it holds one tile
    and `top` columns. Fewer than `top` where the head is narrower. Equal logits: any order.

    Args:
        hidden: the backbone's output, after its final norm.
        head: as `head_of` gives it.
        top: tokens a row, at least 1.
        temperature: logits are divided by it, after scale and softcap.
        rows: rows at a time.
        tile: columns of the vocabulary at a time.
    """
    blocks = [
        _top_block(h, head, top=top, temperature=temperature, tile=tile)
        for h in torch.split(hidden, rows)
    ]
    return TopLogProbs(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _top_block(
    hidden: Tensor, head: Head, *, top: int, temperature: float, tile: int
) -> TopLogProbs:
    """`top_log_probs` of some rows."""
    best = torch.empty(len(hidden), 0, device=hidden.device)
    ids = torch.empty(len(hidden), 0, dtype=torch.int64, device=hidden.device)
    total = torch.full((len(hidden),), -math.inf, device=hidden.device)
    for start in range(0, head.weight.shape[0], tile):
        logits = logits_of(hidden, head, start, start + tile).div_(temperature)
        total = torch.logaddexp(total, torch.logsumexp(logits, -1))
        values, places = logits.topk(min(top, logits.shape[1]))
        best, ids = torch.cat([best, values], 1), torch.cat([ids, places + start], 1)
        best, places = best.topk(min(top, best.shape[1]))
        ids = ids.gather(1, places)
    return TopLogProbs(ids, best - total[:, None])


class Overlap(NamedTuple):
    """How two changes g = p - p_base of one distribution agree over the vocabulary; (row,) each.

    dot: sum of g_1 g_2. squares_1, squares_2: sums of g^2. common: sum over tokens that both move
    the same way of the smaller move. either: sum of the larger move, over all tokens.
    """

    dot: Float32[Tensor, " row"]
    squares_1: Float32[Tensor, " row"]
    squares_2: Float32[Tensor, " row"]
    common: Float32[Tensor, " row"]
    either: Float32[Tensor, " row"]


def signal_overlap(
    states: tuple[Tensor, Tensor, Tensor], head: Head, *, rows: int = ROWS, tile: int = TILE
) -> Overlap:
    """Compare what two conditions do to the whole next-token distribution, exactly.

    Two passes over the vocabulary for each of three states: the first for the log-sum-exp, the
    second for probabilities, tile by tile. No rows x vocabulary tensor.

    Args:
        states: (row, hidden) each, after the final norm: base, first condition, second condition.
        head: as `head_of` gives it.
        rows: rows at a time.
        tile: columns of the vocabulary at a time.
    """
    pieces = zip(*(torch.split(state, rows) for state in states), strict=True)
    blocks = [_overlap_block(piece, head, tile=tile) for piece in pieces]
    return Overlap(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _overlap_block(states: tuple[Tensor, ...], head: Head, *, tile: int) -> Overlap:
    """`signal_overlap` of some rows."""
    starts = range(0, head.weight.shape[0], tile)
    totals = []
    for state in states:
        parts = [torch.logsumexp(logits_of(state, head, i, i + tile), -1) for i in starts]
        totals.append(torch.logsumexp(torch.stack(parts), 0)[:, None])
    sums = [torch.zeros(len(states[0]), device=states[0].device) for _ in Overlap._fields]
    for i in starts:
        base, *told = (
            (logits_of(state, head, i, i + tile) - total).exp_()
            for state, total in zip(states, totals, strict=True)
        )
        one, two = (p - base for p in told)
        product, sizes = one * two, (one.abs(), two.abs())
        shared = torch.minimum(*sizes).masked_fill_(product <= 0, 0.0)
        found = (product, one.square(), two.square(), shared, torch.maximum(*sizes))
        sums = [total.add_(part.sum(-1)) for total, part in zip(sums, found, strict=True)]
    return Overlap(*sums)
