"""The top of a distribution and overlaps of changes, against whole softmaxes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.models.distribution import signal_overlap, top_log_probs
from tokensense.models.head import Head


@given(
    rows=st.integers(1, 7),
    width=st.integers(2, 40),
    top=st.sampled_from([1, 3, 50]),
    tile=st.sampled_from([1, 7, 4096]),
    softcap=st.sampled_from([math.inf, 3.0]),
    seed=st.integers(0, 99),
)
def test_the_likeliest_tokens_are_those_of_the_whole_distribution(
    rows, width, top, tile, softcap, seed
):
    draw = torch.Generator().manual_seed(seed)
    head = Head(torch.randn(width, 5, generator=draw), None, 0.5, softcap)
    hidden = torch.randn(rows, 5, generator=draw)
    found = top_log_probs(hidden, head, top=top, temperature=0.7, rows=3, tile=tile)
    z = 0.5 * hidden.double() @ head.weight.double().T
    if softcap != math.inf:
        z = softcap * torch.tanh(z / softcap)
    truth = torch.log_softmax(z / 0.7, -1)
    values, _ = truth.topk(min(top, width))
    torch.testing.assert_close(found.logp.double(), values, rtol=2e-6, atol=4e-6)
    torch.testing.assert_close(truth.gather(1, found.ids), values, rtol=2e-6, atol=4e-6)
    assert all(len(set(row)) == len(row) for row in found.ids.tolist())


@settings(deadline=None, max_examples=30)
@given(width=st.integers(2, 40), tile=st.sampled_from([1, 7, 4096]), seed=st.integers(0, 99))
def test_overlap_of_two_changes_is_that_of_the_whole_distributions(width, tile, seed):
    draw = torch.Generator().manual_seed(seed)
    head = Head(torch.randn(width, 5, generator=draw), None, 0.5, 3.0)
    states = tuple(torch.randn(4, 5, generator=draw) for _ in range(3))
    found = signal_overlap(states, head, rows=3, tile=tile)
    logits = [3.0 * torch.tanh(0.5 * s.double() @ head.weight.double().T / 3.0) for s in states]
    base, one, two = (torch.softmax(z, -1) for z in logits)
    g, h = one - base, two - base
    same = (g * h > 0).double()
    least, most = torch.minimum(g.abs(), h.abs()), torch.maximum(g.abs(), h.abs())
    truth = (g * h, g * g, h * h, least * same, most)
    for ours, whole in zip(found, truth, strict=True):
        torch.testing.assert_close(ours.double(), whole.sum(-1), rtol=2e-5, atol=2e-6)


def test_a_change_overlaps_itself_wholly_and_its_opposite_not_at_all():
    head = Head(torch.eye(4), None, 1.0, math.inf)
    up = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    zero = torch.zeros(1, 4)
    same = signal_overlap((zero, up, up), head)
    assert same.common == same.either
    assert same.dot == same.squares_1 == same.squares_2
    # Two tokens trade probability, one way and the other.
    there = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).log().clamp(min=-50)
    give, take = (torch.tensor([[a, 1 - a, 0.0, 0.0]]).log().clamp(min=-50) for a in (0.6, 0.4))
    against = signal_overlap((there, give, take), head)
    assert against.common == 0
    assert float(against.dot) == pytest.approx(-0.02, abs=1e-6)
