"""Attention over packed tries: each token sees its own path and nothing else.

Reads  query, key and value of one packed sequence, and the segments of its plan.
Gives  Trie, trie_attention (transformers' attention interface), trie_attention_of.
Source transformers' `AttentionInterface`; attention itself blocks of queries against the keys of
       their path: by torch's fused kernel on a CPU, else by its definition.

The plan comes as a keyword beside the call, never as a mask: a mask of tokens x tokens costs time
and memory squared. The fused kernel does want one of queries x keys; since all paths end at the
queries' own keys, each is a window into one small table. `scaling`, `sliding_window`, `softcap` and
`s_aux` (gpt-oss sinks) are honoured; anything else that would change the result is refused.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.plan import Range, Segment

NAME = "tokensense_trie"
BLOCK = 128  # queries at a time; 256 and 512 measured 3 to 10 % slower on long traces


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
    row before left there and leaves what the next needs. masks: tables of the fused kernel. One
    dict of each for all rows of a plan.

    Not a tuple: compiled layers hand it on without looking in, so that no row is compiled anew.
    """

    segments: tuple[Segment, ...]
    keep: tuple[Range, ...]
    carried: dict[nn.Module, tuple[Tensor, Tensor]]
    masks: dict[int, Tensor] = field(default_factory=dict)


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
    if query.device.type == "cpu" and softcap is None and s_aux is None:
        return _fused(query, keys, values, trie=trie, rule=rule), None
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


def _fused(
    query: Tensor, keys: Tensor, values: Tensor, *, trie: Trie, rule: _Rule
) -> Float[Tensor, "1 token head value"]:
    """Attention of all segments by torch's fused kernel."""
    heads, tokens = query.shape[1], query.shape[2]
    out = values.new_empty(1, tokens, heads, values.shape[-1])
    carried = keys.shape[1] - tokens
    for start, end, before in trie.segments:
        parts = (*before, (start, end))
        k, v = _path(keys, parts)[None], _path(values, parts)[None]
        depth = k.shape[2] - (end - start)
        for first in range(0, end - start, BLOCK):
            last = min(first + BLOCK, end - start)
            low = max(0, depth + first + 1 - rule.window) if rule.window else 0
            seen = slice(low, depth + last)
            own = slice(start - carried + first, start - carried + last)
            mask = _mask(
                trie.masks, k, queries=last - first, keys=depth + last - low, window=rule.window
            )
            mixed = functional.scaled_dot_product_attention(
                query[:, :, own],
                k[:, :, seen],
                v[:, :, seen],
                attn_mask=mask,
                scale=rule.scaling,
                enable_gqa=heads != keys.shape[0],
            )
            out[:, own] = mixed.transpose(1, 2)
    return out


def _mask(
    tables: dict[int, Tensor], like: Tensor, *, queries: int, keys: int, window: int
) -> Float[Tensor, "query key"]:
    """0 where a query sees a key, -inf elsewhere; the last key is the last query's own.

    A view into a table for that window, which grows with the longest path.
    """
    table = tables.get(window)
    if table is None or table.shape[1] < keys - queries + BLOCK:
        # A quarter more than needed, lest every row of a long trace makes a new one.
        width = (keys - queries) * 5 // 4
        lag = torch.arange(BLOCK)[:, None] + (width - torch.arange(width + BLOCK))
        hidden = (lag < 0) | (lag >= window) if window else lag < 0
        table = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, -math.inf)
        tables[window] = table
    width = table.shape[1] - BLOCK
    return table[:queries, width - (keys - queries) : width + queries]


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
