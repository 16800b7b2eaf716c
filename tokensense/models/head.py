"""From hidden states to log-probabilities: the one function that does it, for scorer and sampler.

Reads  final hidden states and the model's head (weight, bias, scale, softcap).
Gives  head_of, log_statistics, log_probabilities, logits_of.
Sign   logp <= 0 and entropy >= 0, nats.
Source online softmax in vocabulary tiles, as in cut cross-entropy (apple/ml-cross-entropy), with
       one sum more for the entropy and one for sum p^2.

Where gradients are on, that of logp is given, by a backward pass in tiles as well: what is trained
on is what is scored, to the last bit of the same hidden states. The other statistics have none.

No tensor of rows x vocabulary is ever made. Everything after the matrix product is float32, also
for a bfloat16 model: log-softmax in bfloat16 is off by .05 nats. `torch.log_softmax` on CPU is not
used: it is biased by 1e-5 nats a token over 49k columns.
"""

import math
from typing import Any, NamedTuple

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

    Differentiable in logp, with respect to `hidden` and the head, where gradients are on.

    Args:
        hidden: the backbone's output, after its final norm.
        targets: id whose probability is asked for, below the head's width.
        head: as `head_of` gives it; the softmax runs over its whole width, padding included.
        temperature: logits are divided by it, after scale and softcap.
        rows: rows at a time.
        tile: columns of the vocabulary at a time.
        fused: compile what follows the matrix product: one pass over a tile instead of eight.
    """
    if torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad):
        settings = _Settings(head.scale, head.softcap, temperature, rows, tile)
        apply: Any = _Differentiable.apply
        return LogStatistics(*apply(hidden, head.weight, head.bias, targets, settings))
    sums = _all_sums(
        hidden, targets, head, temperature=temperature, rows=rows, tile=tile, fused=fused
    )
    return _statistics(sums)


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


def _all_sums(
    hidden: Tensor,
    targets: Tensor,
    head: Head,
    *,
    temperature: float,
    rows: int,
    tile: int,
    fused: bool = False,
) -> _Sums:
    """The sums over the whole vocabulary, some rows at a time."""
    blocks = [
        _row_sums(h, t, head, temperature=temperature, tile=tile, fused=fused)
        for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    ]
    return _Sums(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _row_sums(
    hidden: Tensor, targets: Tensor, head: Head, *, temperature: float, tile: int, fused: bool
) -> _Sums:
    """`_all_sums` of some rows."""
    fold = compiled(_folded) if fused else _folded
    zeros = [torch.zeros(len(targets), device=hidden.device) for _ in range(4)]
    sums = _Sums(torch.full_like(zeros[0], torch.finfo(torch.float32).min), *zeros)
    shape = _shape(head, temperature)
    for start in range(0, head.weight.shape[0], tile):
        raw = _product(hidden, head, start, start + tile)
        sums = fold(raw, targets - start, sums, shape)
    return sums


def _statistics(sums: _Sums) -> LogStatistics:
    """What the sums come to."""
    log_total = sums.total.log()
    return LogStatistics(
        logp=(sums.chosen - sums.maximum) - log_total,
        entropy=(log_total - sums.weighted / sums.total).clamp_(min=0.0),
        p_max=sums.total.reciprocal(),
        p_square_sum=sums.squares / sums.total.square(),
    )


class _Settings(NamedTuple):
    """What the differentiable pass is told beside tensors; as in `Head` and `log_statistics`."""

    scale: float
    softcap: float
    temperature: float
    rows: int
    tile: int


class _Differentiable(torch.autograd.Function):
    """`log_statistics` with the gradient of logp: d logp / d logits = onehot - p."""

    @staticmethod
    def forward(  # noqa: PLR0917 (as torch calls it)
        ctx: Any,  # noqa: ANN401 (torch has no type for it)
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: _Settings,
    ) -> LogStatistics:
        """The statistics; the logarithm of the total is all that is kept of the vocabulary."""
        scale, softcap, temperature, rows, tile = settings
        head = Head(weight, bias, scale, softcap)
        sums = _all_sums(hidden, targets, head, temperature=temperature, rows=rows, tile=tile)
        found = _statistics(sums)
        ctx.settings = settings
        ctx.save_for_backward(hidden, weight, bias, targets, sums.maximum + sums.total.log())
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        by_logp: Tensor,
        *_: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        """Gradients of hidden states, weight and bias; logits are computed again, tile by tile."""
        hidden, weight, bias, targets, log_norm = ctx.saved_tensors
        scale, softcap, temperature, rows, tile = ctx.settings
        head = Head(weight, bias, scale, softcap)
        by_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        by_weight = torch.zeros_like(weight, dtype=torch.float32)
        by_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for low in range(0, len(hidden), rows):
            some = slice(low, low + rows)
            h = hidden[some]
            for start in range(0, weight.shape[0], tile):
                columns = slice(start, start + tile)
                by_raw = _by_raw_logits(
                    _product(h, head, start, start + tile),
                    targets[some] - start,
                    log_norm=log_norm[some],
                    by_logp=by_logp[some],
                    shape=_shape(head, temperature),
                )
                by_hidden[some] += (by_raw @ weight[columns]).float()
                by_weight[columns] += (by_raw.T @ h).float()
                if by_bias is not None:
                    by_bias[columns] += by_raw.sum(0, dtype=torch.float32)
        return (
            by_hidden.to(hidden.dtype),
            by_weight.to(weight.dtype),
            by_bias if bias is None or by_bias is None else by_bias.to(bias.dtype),
            None,
            None,
        )


def _by_raw_logits(
    raw: Tensor, targets: Tensor, *, log_norm: Tensor, by_logp: Tensor, shape: _Shape
) -> Tensor:
    """Gradient with respect to one tile of the head's plain product, in its number format."""
    logits = _shaped(raw.float(), shape)
    gradient = (logits - log_norm[:, None]).exp_().mul_(-by_logp[:, None])
    inside = (targets >= 0) & (targets < logits.shape[1])
    place = targets.clamp(0, logits.shape[1] - 1)[:, None]
    gradient.scatter_add_(1, place, torch.where(inside, by_logp, 0.0)[:, None])
    if shape.temperature is not None:
        gradient.div_(shape.temperature)
        logits.mul_(shape.temperature)
    if shape.softcap is not None:
        gradient.mul_(1 - (logits / shape.softcap).square())
    if shape.scale is not None:
        gradient.mul_(shape.scale)
    return gradient.to(raw.dtype)


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


def log_probabilities(
    hidden: Float[Tensor, "row hidden"], head: Head, *, temperature: float = 1.0
) -> Float32[Tensor, "row entry"]:
    """Log p of every entry of the head, nats; differentiable. For some rows at a time.

    Args:
        hidden: as in `log_statistics`.
        head: likewise.
        temperature: likewise.
    """
    raw = _product(hidden, head, 0, head.weight.shape[0])
    logits = _shaped(raw.float(), _shape(head, temperature))
    return logits - torch.logsumexp(logits, dim=-1, keepdim=True)


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
        # Out of place: tanh keeps its output for the backward pass of `log_probabilities`.
        logits = logits.div_(shape.softcap).tanh_() * shape.softcap
    if shape.temperature is not None:
        logits = logits.div_(shape.temperature)
    return logits
