"""Attention over packed tries: each token sees its own path and nothing else.

Reads  query, key and value of one packed sequence, and the segments of its plan.
Gives  Trie, trie_attention (transformers' attention interface), trie_attention_of.
Source transformers' `AttentionInterface`; attention itself by its definition, blocks of queries
       against the keys of their path.

The plan comes as a keyword beside the call, never as a mask: a mask of tokens x tokens costs time
and memory squared. `scaling`, `sliding_window`, `softcap` and `s_aux` (gpt-oss sinks) are honoured;
anything else that would change the result is refused.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.plan import Range, Segment

NAME = "tokensense_trie"
BLOCK = 128  # queries at a time: the scores of a block stay near the core


class _Rule(NamedTuple):
    """What a layer does to its scores. window: keys seen, the own one included; 0 for all."""

    scaling: float
    window: int
    softcap: float | None
    sinks: Tensor | None


@dataclass(frozen=True, eq=False)
class Trie:
    """What a forward pass of a packed row is told beside its tokens.

    segments, keep: of the row's plan. carried: keys and values by layer; each layer takes what the
    row before left there and leaves what the next needs. One dict for all rows of a plan.

    Not a tuple: compiled layers hand it on without looking in, so that no row is compiled anew.
    """

    segments: tuple[Segment, ...]
    keep: tuple[Range, ...]
    carried: dict[nn.Module, tuple[Tensor, Tensor]]


def trie_attention(  # noqa: PLR0913, PLR0917 (the call is transformers')
    module: nn.Module,
    query: Float[Tensor, "1 head token width"],
    key: Float[Tensor, "1 group token width"],
    value: Float[Tensor, "1 group token value"],
    attention_mask: Tensor | None,
    *,
    trie: Trie,
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
    keys, values = _with_carried(module, key[0], value[0], trie)
    heads, groups, tokens = query.shape[1], key.shape[1], query.shape[2]
    # (group, token, head of the group, width): a block of queries is one matrix a group.
    q = query[0].reshape(groups, heads // groups, tokens, -1).transpose(1, 2)
    q = torch.mul(q, rule.scaling).contiguous()
    out = value.new_empty(tokens, groups, heads // groups, value.shape[-1])
    first = keys.shape[1] - tokens
    for start, end, before in trie.segments:
        parts = (*before, (start, end))
        own = slice(start - first, end - first)
        _attend(q[:, own], _path(keys, parts), _path(values, parts), out[own], rule=rule)
    return out.flatten(1, 2)[None], None


def _with_carried(
    module: nn.Module, key: Tensor, value: Tensor, trie: Trie
) -> tuple[Tensor, Tensor]:
    """Keys and values, carried ones in front; what the next row needs goes to `trie.carried`."""
    if (before := trie.carried.pop(module, None)) is not None:
        key, value = torch.cat([before[0], key], dim=1), torch.cat([before[1], value], dim=1)
    if trie.keep:
        # Copies, lest a short path keeps the whole row alive.
        trie.carried[module] = _path(key, trie.keep).clone(), _path(value, trie.keep).clone()
    return key, value


def _attend(
    q: Float[Tensor, "group query share width"],
    k: Float[Tensor, "group key width"],
    v: Float[Tensor, "group key value"],
    out: Float[Tensor, "query group share value"],
    *,
    rule: _Rule,
) -> None:
    """Write the attention of one segment into `out`; `k` and `v` are those of its whole path."""
    groups, tokens, share, width = q.shape
    depth = k.shape[1] - tokens
    for first in range(0, tokens, BLOCK):
        last = min(first + BLOCK, tokens)
        seen = depth + last
        low = max(0, depth + first + 1 - rule.window) if rule.window else 0
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


def _path(x: Tensor, parts: tuple[Range, ...]) -> Tensor:
    """Keys or values of a path; a view where it is one stretch."""
    low, high = parts[0]
    pieces = []
    for start, end in parts[1:]:
        if start != high:
            pieces.append(x[:, low:high])
            low = start
        high = end
    pieces.append(x[:, low:high])
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
