"""Attention over packed tries: each token sees its own path and nothing else.

Reads  query, key and value of one packed sequence, and the segments of its plan.
Gives  trie_attention (transformers' attention interface), trie_attention_of (a context manager).
Source transformers' `AttentionInterface`; attention itself by its definition, blocks of queries
       against the keys of their path.

The plan comes as a keyword beside the call, never as a mask: a mask of tokens x tokens costs time
and memory squared. `scaling`, `sliding_window`, `softcap` and `s_aux` (gpt-oss sinks) are honoured;
anything else that would change the result is refused.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.plan import Segment

NAME = "tokensense_trie"
BLOCK = 128  # queries at a time: the scores of a block stay near the core


class _Rule(NamedTuple):
    """What a layer does to its scores. window: keys seen, the own one included; 0 for all."""

    scaling: float
    window: int
    softcap: float | None
    sinks: Tensor | None


def trie_attention(  # noqa: PLR0913, PLR0917 (the call is transformers')
    module: nn.Module,
    query: Float[Tensor, "1 head token width"],
    key: Float[Tensor, "1 group token width"],
    value: Float[Tensor, "1 group token value"],
    attention_mask: Tensor | None,
    *,
    segments: Sequence[Segment],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " head"] | None = None,
    **rest: object,
) -> tuple[Float[Tensor, "1 token head value"], None]:
    """Attention of one layer, called as transformers calls it.

    Raises:
        PolicyError: the model hands over a mask, dropout, a bias, or asks for no causality.
    """
    refused = [name for name in ("position_bias", "alibi", "dropout") if rest.get(name)]
    if attention_mask is not None:
        refused.append("attention_mask")
    if rest.get("is_causal") is False:
        refused.append("is_causal=False")
    if refused:
        raise PolicyError(
            f"Packed scoring needs plain causal attention; {type(module).__name__} asks for "
            f"{refused}. Score with path='padded'."
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = _Rule(scaling, sliding_window or 0, softcap, s_aux)
    heads, groups, tokens = query.shape[1], key.shape[1], query.shape[2]
    # (group, token, head of the group, width): a block of queries is one matrix a group.
    q = query[0].reshape(groups, heads // groups, tokens, -1).transpose(1, 2)
    q = torch.mul(q, rule.scaling).contiguous()
    out = value.new_empty(tokens, groups, heads // groups, value.shape[-1])
    for segment in segments:
        _attend(q, key[0], value[0], out, segment=segment, rule=rule)
    return out.flatten(1, 2)[None], None


def _attend(
    q: Tensor, key: Tensor, value: Tensor, out: Tensor, *, segment: Segment, rule: _Rule
) -> None:
    """Write the attention of one segment's tokens into `out`."""
    groups, _, share, width = q.shape
    start, end, before = segment
    parts = _ranges(before, start, end)
    k, v = (_path(x, parts) for x in (key, value))
    depth = k.shape[1] - (end - start)
    for first in range(start, end, BLOCK):
        last = min(first + BLOCK, end)
        seen = depth + last - start
        low = max(0, depth + first - start + 1 - rule.window) if rule.window else 0
        block = q[:, first:last].reshape(groups, -1, width)
        scores = torch.bmm(block, k[:, low:seen].transpose(1, 2)).float()
        scores = scores.view(groups, last - first, share, seen - low)
        p = _weights(scores, rule).to(v.dtype)
        mixed = torch.bmm(p.view(groups, -1, seen - low), v[:, low:seen])
        out[first:last] = mixed.view(groups, last - first, share, -1).transpose(0, 1)


def _weights(
    scores: Float[Tensor, "group query share key"], rule: _Rule
) -> Float[Tensor, "group query share key"]:
    """Softmax over the keys that each query sees; the last key is the last query's own."""
    queries, keys = scores.shape[1], scores.shape[3]
    if rule.softcap is not None:
        scores = scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
    hidden = torch.ones(queries, queries, dtype=torch.bool, device=scores.device).triu_(1)
    scores[..., keys - queries :].masked_fill_(hidden[:, None], -math.inf)
    if rule.window and keys > rule.window:
        lag = torch.arange(queries, device=scores.device)[:, None] + (keys - queries)
        far = lag - torch.arange(keys, device=scores.device) >= rule.window
        scores.masked_fill_(far[:, None], -math.inf)
    if rule.sinks is None:
        return torch.softmax(scores, dim=-1)
    groups, share = scores.shape[0], scores.shape[2]
    sinks = rule.sinks.float().view(groups, 1, share, 1).expand(-1, queries, -1, -1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1].contiguous()


def _ranges(
    before: tuple[tuple[int, int], ...], start: int, end: int
) -> tuple[tuple[int, int], ...]:
    """The packed ranges of a whole path, neighbours joined."""
    if before and before[-1][1] == start:
        return (*before[:-1], (before[-1][0], end))
    return (*before, (start, end))


def _path(x: Tensor, parts: tuple[tuple[int, int], ...]) -> Tensor:
    """Keys or values of a path; a view where it is one range."""
    pieces = [x[:, start:end] for start, end in parts]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def _no_mask(*args: object, **kwargs: object) -> None:
    """The mask of trie attention: none, whatever the model would have made."""


@contextmanager
def trie_attention_of(
    model: PreTrainedModel, function: Callable[..., tuple[Tensor, None]] = trie_attention
) -> Iterator[None]:
    """Trie attention in a model; its own attention is put back, so `generate` goes on working."""
    AttentionInterface.register(NAME, function)
    AttentionMaskInterface.register(NAME, _no_mask)
    own = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
