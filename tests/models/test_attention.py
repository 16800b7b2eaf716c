import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.models.zoo import tiny_policy
from tokensense.errors import PolicyError
from tokensense.models import attention as module
from tokensense.models.attention import NAME, Trie, trie_attention, trie_attention_of
from tokensense.models.plan import Segment

# Root 0..3, two children 3..7 and 7..12, a grandchild 12..14 below the first.
SEGMENTS = (
    Segment(0, 3, ()),
    Segment(3, 7, ((0, 3),)),
    Segment(7, 12, ((0, 3),)),
    Segment(12, 14, ((0, 7),)),
)


def by_definition(q, k, v, *, scaling, window, softcap, sinks):
    """One query at a time over the keys of its path, in float64."""
    out = torch.zeros(14, q.shape[1], v.shape[-1], dtype=torch.float64)
    share = q.shape[1] // k.shape[1]
    for start, end, before in SEGMENTS:
        for place in range(start, end):
            path = [i for a, b in before for i in range(a, b)] + list(range(start, place + 1))
            path = path[-window:] if window else path
            for head in range(q.shape[1]):
                z = (k[0, head // share, path].double() @ q[0, head, place].double()) * scaling
                z = softcap * torch.tanh(z / softcap) if softcap else z
                e = z.exp()
                total = e.sum() + (math.exp(sinks[head]) if sinks is not None else 0)
                out[place, head] = (e / total) @ v[0, head // share, path].double()
    return out


@settings(deadline=None, max_examples=25)
@given(
    window=st.sampled_from([None, 1, 2, 5, 50]),
    softcap=st.sampled_from([None, 1.5]),
    sink=st.booleans(),
    block=st.sampled_from([1, 2, 128]),
    share=st.sampled_from([1, 2]),
)
def test_each_token_sees_its_own_path(window, softcap, sink, block, share):
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2 * share, 14, 4, generator=draw)
    k, v = (torch.randn(1, 2, 14, 4, generator=draw) for _ in range(2))
    sinks = torch.randn(2 * share, generator=draw) if sink else None
    before = module.BLOCK
    try:
        module.BLOCK = block
        out, _ = trie_attention(
            nn.Identity(), q, k, v, None, trie=Trie(SEGMENTS, (), {}),
            scaling=0.7, sliding_window=window, softcap=softcap, s_aux=sinks,
        )  # fmt: skip
    finally:
        module.BLOCK = before
    truth = by_definition(q, k, v, scaling=0.7, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(out[0].double(), truth, rtol=0, atol=2e-6)


def test_what_is_kept_comes_before_the_next_row():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 14, 4, generator=draw) for _ in range(3))
    whole, _ = trie_attention(nn.Identity(), q, k, v, None, trie=Trie(SEGMENTS, (), {}))
    # Cut inside the second child: its path, 0..3 and 7..9, is kept and becomes 0..5; the child's
    # tokens 9..12 become 5..8.
    layer, carried = nn.Identity(), {}
    first = (*SEGMENTS[:2], Segment(7, 9, ((0, 3),)))
    one, _ = trie_attention(
        layer, q[:, :, :9], k[:, :, :9], v[:, :, :9], None,
        trie=Trie(first, ((0, 3), (7, 9)), carried),
    )  # fmt: skip
    assert carried[layer][0].shape == (2, 5, 4)
    rest = slice(9, 12)
    two, _ = trie_attention(
        layer, q[:, :, rest], k[:, :, rest], v[:, :, rest], None,
        trie=Trie((Segment(5, 8, ((0, 5),)),), (), carried),
    )  # fmt: skip
    assert carried == {}
    torch.testing.assert_close(torch.cat([one, two], 1), whole[:, :12], rtol=0, atol=1e-6)


def test_scaling_defaults_to_the_root_of_the_width():
    x = torch.randn(1, 2, 14, 4)
    one, _ = trie_attention(nn.Identity(), x, x, x, None, trie=Trie(SEGMENTS, (), {}))
    two, _ = trie_attention(nn.Identity(), x, x, x, None, trie=Trie(SEGMENTS, (), {}), scaling=0.5)
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("mask", "extra", "named"),
    [
        (torch.zeros(1), {}, "attention_mask"),
        (None, {"dropout": 0.1}, "dropout"),
        (None, {"position_bias": torch.ones(1)}, "position_bias"),
        (None, {"is_causal": False}, "is_causal=False"),
    ],
)
def test_what_would_change_the_result_is_refused(mask, extra, named):
    x = torch.zeros(1, 2, 14, 4)
    with pytest.raises(PolicyError, match=rf"Identity asks for \['{named}'\]"):
        trie_attention(nn.Identity(), x, x, x, mask, trie=Trie(SEGMENTS, (), {}), **extra)


def test_the_own_attention_comes_back_also_after_an_error():
    model = tiny_policy("gemma2").model
    own = model.config._attn_implementation
    names = []

    def fail_inside():
        with trie_attention_of(model):
            names.append(model.config._attn_implementation)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert names == [NAME]
    assert model.config._attn_implementation == own
