import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.bigram import bigram_policy
from tokensense.errors import PolicyError
from tokensense.models.head import Head, head_of, log_statistics


def expected(hidden, targets, head, temperature):
    """The definition, in float64, over the whole vocabulary at once."""
    z = hidden.double() @ head.weight.double().T
    if head.bias is not None:
        z = z + head.bias.double()
    z = z * head.scale
    if head.softcap != math.inf:
        z = head.softcap * torch.tanh(z / head.softcap)
    logp = torch.log_softmax(z / temperature, dim=-1)
    p = logp.exp()
    rows = torch.arange(len(targets))
    return logp[rows, targets], -(p * logp).sum(-1), p.amax(-1), (p * p).sum(-1)


@given(
    rows=st.integers(1, 7),
    width=st.integers(2, 40),
    tile=st.sampled_from([1, 7, 4096]),
    block=st.sampled_from([1, 3, 512]),
    bias=st.booleans(),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([math.inf, 3.0]),
    temperature=st.sampled_from([1.0, 0.7]),
    spread=st.sampled_from([0.1, 3.0]),
    seed=st.integers(0, 99),
)
def test_tiles_give_what_the_definition_gives(
    rows, width, tile, block, bias, scale, softcap, temperature, spread, seed
):
    draw = torch.Generator().manual_seed(seed)
    weight = spread * torch.randn(width, 5, generator=draw)
    head = Head(weight, torch.randn(width, generator=draw) if bias else None, scale, softcap)
    hidden = torch.randn(rows, 5, generator=draw)
    targets = torch.randint(width, (rows,), generator=draw)
    found = log_statistics(hidden, targets, head, temperature=temperature, rows=block, tile=tile)
    for ours, truth in zip(found, expected(hidden, targets, head, temperature), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), truth, rtol=2e-6, atol=4e-6)


def test_logits_hundreds_apart_neither_overflow_nor_turn_to_nan():
    # Columns: 0, 300, -300, 299 logits; the second is the largest and comes in another tile.
    head = Head(torch.tensor([[0.0], [300.0], [-300.0], [299.0]]), None, 1.0, math.inf)
    hidden, targets = torch.ones(4, 1), torch.tensor([0, 1, 2, 3])
    found = log_statistics(hidden, targets, head, tile=1)
    log_total = math.log1p(math.exp(-1))
    assert found.logp.tolist() == pytest.approx(
        [-300 - log_total, -log_total, -600 - log_total, -1 - log_total], abs=1e-4
    )
    p = 1 / (1 + math.exp(-1))
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert found.entropy.tolist() == pytest.approx([entropy] * 4, abs=1e-5)
    assert found.p_square_sum.tolist() == pytest.approx([p * p + (1 - p) ** 2] * 4, abs=1e-6)


def test_certainty_has_entropy_zero_and_never_below():
    head = Head(torch.tensor([[500.0], [0.0]]), None, 1.0, math.inf)
    found = log_statistics(torch.ones(1, 1), torch.tensor([0]), head)
    assert [float(x) for x in found] == [0.0, 0.0, 1.0, 1.0]


def test_half_precision_logits_meet_a_float32_softmax():
    draw = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(5000, 8, generator=draw), torch.randn(3, 8, generator=draw)
    head = Head(weight.bfloat16(), None, 1.0, math.inf)
    targets = torch.tensor([1, 2, 4999])
    found = log_statistics(hidden.bfloat16(), targets, head)
    logits = (hidden.bfloat16() @ weight.bfloat16().T).double()
    truth = torch.log_softmax(logits, -1)[torch.arange(3), targets]
    torch.testing.assert_close(found.logp.double(), truth, rtol=0, atol=1e-5)


def test_scale_and_softcap_come_from_the_config():
    model = bigram_policy().model
    assert head_of(model)[1:] == (None, 1.0, math.inf)
    model.config.logit_scale, model.config.logits_scaling = 3.0, 4.0
    model.config.final_logit_softcapping = 30.0
    assert head_of(model)[2:] == (0.75, 30.0)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(PolicyError, match="need a language-model head; LlamaModel has none"):
        head_of(bigram_policy().model.model)


# --- gradients ---


@given(
    rows=st.integers(1, 7),
    width=st.integers(2, 40),
    tile=st.sampled_from([1, 7, 4096]),
    block=st.sampled_from([1, 3, 512]),
    bias=st.booleans(),
    scale=st.sampled_from([1.0, 0.25]),
    softcap=st.sampled_from([math.inf, 3.0]),
    temperature=st.sampled_from([1.0, 0.7]),
    seed=st.integers(0, 99),
)
def test_the_gradient_of_logp_is_that_of_the_definition(
    rows, width, tile, block, bias, scale, softcap, temperature, seed
):
    draw = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(width, 5, generator=draw), torch.randn(rows, 5, generator=draw)]
    leaves += [torch.randn(width, generator=draw)] if bias else []
    targets = torch.randint(width, (rows,), generator=draw)
    credit = torch.randn(rows, generator=draw)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        weight, hidden, *rest = [leaf.to(dtype, copy=True).requires_grad_() for leaf in leaves]
        head = Head(weight, rest[0] if rest else None, scale, softcap)
        if dtype == torch.float32:
            logp = log_statistics(
                hidden, targets, head, temperature=temperature, rows=block, tile=tile
            ).logp
        else:
            logp = expected(hidden, targets, head, temperature)[0]
        (credit.to(dtype) * logp).sum().backward()
        gradients.append([leaf.grad.double() for leaf in (weight, hidden, *rest)])
    for ours, truth in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, truth, rtol=2e-5, atol=4e-6)


def test_what_is_trained_on_is_what_is_scored_to_the_last_bit():
    draw = torch.Generator().manual_seed(0)
    head = Head(torch.randn(50, 8, generator=draw), None, 1.0, math.inf)
    hidden = torch.randn(9, 8, generator=draw)
    targets = torch.randint(50, (9,), generator=draw)
    scored = log_statistics(hidden, targets, head, tile=7)
    trained = log_statistics(hidden.clone().requires_grad_(), targets, head, tile=7)
    assert trained.logp.requires_grad
    assert not any(part.requires_grad for part in trained[1:])
    assert all(torch.equal(a, b) for a, b in zip(scored, trained, strict=True))


def test_a_bfloat16_head_gets_gradients_in_bfloat16():
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 8, generator=draw).bfloat16().requires_grad_()
    hidden = torch.randn(6, 8, generator=draw).bfloat16().requires_grad_()
    targets = torch.randint(30, (6,), generator=draw)
    log_statistics(hidden, targets, Head(weight, None, 1.0, math.inf), rows=2).logp.sum().backward()
    plain = weight.detach().double().requires_grad_()
    expected(hidden.detach().double(), targets, Head(plain, None, 1.0, math.inf), 1.0)[
        0
    ].sum().backward()
    assert weight.grad.dtype == hidden.grad.dtype == torch.bfloat16
    torch.testing.assert_close(weight.grad.double(), plain.grad, rtol=0.05, atol=0.05)
