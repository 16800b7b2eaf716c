"""From hidden states to log-probabilities: the one function that does it, for scorer and sampler.

Reads  final hidden states and the model's head (weight, bias, scale, softcap).
Gives  head_of, log_statistics, top_log_probs, signal_overlap, logits_of.
Sign   logp <= 0 and entropy >= 0, nats.
Source online softmax in vocabulary tiles, as in cut cross-entropy (apple/ml-cross-entropy), with
       one sum more for the entropy and one for sum p^2.

No tensor of rows x vocabulary is ever made. Everything after the matrix product is float32, also
for a bfloat16 model: log-softmax in bfloat16 is off by .05 nats. `torch.log_softmax` on CPU is not
used: it is biased by 1e-5 nats a token over 49k columns.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.compiled import compiled

ROWS, TILE = 512, 4096  # 8 MB of logits at a time; part of what decides the last bits of a score


class Head(NamedTuple):
    """The last linear map of a model, and what it does to its output.

    logits = softcap * tanh(scale * (weight @ hidden + bias) / softcap), softcap inf meaning none.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float


class LogStatistics(NamedTuple):
    """What is kept of the next-token distribution p of each row; (row,) each.

    logp: log p(target), nats. entropy: nats. p_max: largest probability. p_square_sum: sum of p^2.
    """

    logp: Float32[Tensor, " row"]
    entropy: Float32[Tensor, " row"]
    p_max: Float32[Tensor, " row"]
    p_square_sum: Float32[Tensor, " row"]


def head_of(model: PreTrainedModel) -> Head:
    """The head of a causal language model, with the logit scale and softcap of its config.

    Raises:
        PolicyError: the model has no head.
    """
    linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if linear is None:
        raise PolicyError(
            f"Log-probabilities need a language-model head; {type(model).__name__} has none. "
            "Load the model as a causal language model."
        )
    config = model.config.get_text_config()
    # Cohere multiplies logits by `logit_scale`, Granite divides them by `logits_scaling`.
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = float(getattr(config, "final_logit_softcapping", None) or math.inf)
    return Head(linear.weight, getattr(linear, "bias", None), scale, softcap)


def log_statistics(
    hidden: Float[Tensor, "row hidden"],
    targets: Int64[Tensor, " row"],
    head: Head,
    *,
    temperature: float = 1.0,
    rows: int = ROWS,
    tile: int = TILE,
    fused: bool = False,
) -> LogStatistics:
    """Log-probability of each target, and the shape of the distribution that it comes from.

    Args:
        hidden: the backbone's output, after its final norm.
        targets: id whose probability is asked for, below the head's width.
        head: as `head_of` gives it; the softmax runs over its whole width, padding included.
        temperature: logits are divided by it, after scale and softcap.
        rows: rows at a time.
        tile: columns of the vocabulary at a time.
        fused: compile what follows the matrix product: one pass over a tile instead of eight.
    """
    blocks = [
        _row_block(h, t, head, temperature=temperature, tile=tile, fused=fused)
        for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    ]
    return LogStatistics(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


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
    shape = _shape(head, temperature)
    best = torch.empty(len(hidden), 0, device=hidden.device)
    ids = torch.empty(len(hidden), 0, dtype=torch.int64, device=hidden.device)
    total = torch.full((len(hidden),), -math.inf, device=hidden.device)
    for start in range(0, head.weight.shape[0], tile):
        logits = _shaped(_product(hidden, head, start, start + tile).float(), shape)
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


class _Shape(NamedTuple):
    """What is done to logits before the softmax; None for nothing."""

    scale: float | None
    softcap: float | None
    temperature: float | None


class _Sums(NamedTuple):
    """What is kept of the tiles seen so far, with e = exp(logit - maximum); (row,) each.

    weighted: sum of e * (logit - maximum). chosen: logit of the target.
    """

    maximum: Tensor
    total: Tensor
    weighted: Tensor
    squares: Tensor
    chosen: Tensor


def _row_block(
    hidden: Tensor, targets: Tensor, head: Head, *, temperature: float, tile: int, fused: bool
) -> LogStatistics:
    """`log_statistics` of some rows."""
    fold = compiled(_folded) if fused else _folded
    zeros = [torch.zeros(len(targets), device=hidden.device) for _ in range(4)]
    sums = _Sums(torch.full_like(zeros[0], torch.finfo(torch.float32).min), *zeros)
    shape = _shape(head, temperature)
    for start in range(0, head.weight.shape[0], tile):
        raw = _product(hidden, head, start, start + tile)
        sums = fold(raw, targets - start, sums, shape)
    log_total = sums.total.log()
    return LogStatistics(
        logp=(sums.chosen - sums.maximum) - log_total,
        entropy=(log_total - sums.weighted / sums.total).clamp_(min=0.0),
        p_max=sums.total.reciprocal(),
        p_square_sum=sums.squares / sums.total.square(),
    )


def _folded(raw: Tensor, targets: Tensor, sums: _Sums, shape: _Shape) -> _Sums:
    """The sums with one tile more; targets count in it.

    Eager, it works in place: `raw` is not to be used again.
    """
    logits = _shaped(raw.float(), shape)
    inside = (targets >= 0) & (targets < logits.shape[1])
    logit = logits.gather(1, targets.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    maximum = torch.maximum(sums.maximum, logits.amax(-1))
    fall = sums.maximum - maximum
    shrink = fall.exp()
    below = logits.sub_(maximum[:, None])
    e = below.exp()
    # The old sums move to the new maximum.
    return _Sums(
        maximum=maximum,
        total=shrink * sums.total + e.sum(-1),
        weighted=shrink * (sums.weighted + fall * sums.total) + below.mul_(e).sum(-1),
        squares=shrink.square() * sums.squares + e.square_().sum(-1),
        chosen=torch.where(inside, logit, sums.chosen),
    )


def logits_of(hidden: Tensor, head: Head, start: int, end: int) -> Float32[Tensor, "row tile"]:
    """Logits of columns [start, end), float32, scale and softcap applied."""
    return _shaped(_product(hidden, head, start, end).float(), _shape(head, 1.0))


def _product(hidden: Tensor, head: Head, start: int, end: int) -> Tensor:
    """The head's linear map, columns [start, end), in the model's own number format."""
    bias = None if head.bias is None else head.bias[start:end]
    return functional.linear(hidden, head.weight[start:end], bias)


def _shape(head: Head, temperature: float) -> _Shape:
    """What is done to logits; None for what would change nothing.

    Never infinity: compiled code takes a number for finite, and drops the question whether it is.
    """
    return _Shape(
        None if head.scale == 1.0 else head.scale,
        None if head.softcap == math.inf else head.softcap,
        None if temperature == 1.0 else temperature,
    )


def _shaped(logits: Tensor, shape: _Shape) -> Tensor:
    """Scale, softcap and temperature, in place."""
    if shape.scale is not None:
        logits = logits.mul_(shape.scale)
    if shape.softcap is not None:
        logits = logits.div_(shape.softcap).tanh_().mul_(shape.softcap)
    if shape.temperature is not None:
        logits = logits.div_(shape.temperature)
    return logits
