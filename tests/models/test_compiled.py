"""Fused code gives what plain code gives, and leaves the model as it was."""

import math
import warnings

import numpy as np
import pytest
import torch

from tests.bigram import bigram_logp, bigram_policy
from tests.models.test_head import expected
from tests.models.test_scorer import largest_error, some_branches
from tests.models.zoo import PACKED, tiny_policy
from tokensense.errors import PolicyError
from tokensense.models.compiled import can_compile, compiled_layers
from tokensense.models.head import Head, log_statistics
from tokensense.models.plan import Branch
from tokensense.models.scorer import score, worth_compiling

pytestmark = [
    pytest.mark.slow,  # each compiles for seconds, on a busy core for half a minute
    pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler (g++)"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_head_gives_what_the_definition_gives(dtype):
    draw = torch.Generator().manual_seed(0)
    head = Head(torch.randn(1000, 16, generator=draw).to(dtype), None, 0.5, 9.0)
    hidden = torch.randn(37, 16, generator=draw).to(dtype)
    targets = torch.randint(1000, (37,), generator=draw)
    plain, fused = (
        log_statistics(hidden, targets, head, temperature=0.7, rows=16, tile=300, fused=fused)
        for fused in (False, True)
    )
    for ours, eager in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-6, atol=4e-6)
    if dtype == torch.float32:
        for ours, truth in zip(fused, expected(hidden, targets, head, 0.7), strict=True):
            torch.testing.assert_close(ours.double(), truth, rtol=2e-6, atol=4e-6)


def test_a_head_without_softcap_is_right_after_heads_with_several():
    """Compiled code that has seen two numbers takes a third, and infinity would be none."""
    hidden, weight = torch.randn(5, 8), torch.randn(50, 8)
    targets = torch.arange(5)
    for softcap in (9.0, 5.0, 2.0, math.inf):
        for scale in (0.5, 0.25, 1.0):
            head = Head(weight, None, scale, softcap)
            for ours, truth in zip(
                log_statistics(hidden, targets, head, fused=True),
                expected(hidden, targets, head, 1.0),
                strict=True,
            ):
                torch.testing.assert_close(ours.double(), truth, rtol=2e-6, atol=4e-6)


def agrees(name: str) -> None:
    policy, branches = tiny_policy(name), some_branches()
    found = score(policy, branches, tokens_per_row=64, path="trie", compiled=True)
    largest, mean = largest_error(found, branches, policy.model)
    assert largest < 1e-4
    assert mean < 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_fused_layers_agree_with_the_reference(name):
    agrees(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PACKED.keys() - {"llama", "gemma2"}))
def test_fused_layers_of_every_packed_architecture_agree_with_the_reference(name):
    agrees(name)


def test_fused_code_gives_the_closed_form_and_the_same_bytes_twice():
    policy = bigram_policy()
    last, *response = np.random.default_rng(0).integers(0, 260, 30).tolist()
    branches = [Branch((*context, last), tuple(response)) for context in ((1, 2), (7,), ())]
    found, again = (score(policy, branches, tokens_per_row=50, compiled=True) for _ in range(2))
    truth = bigram_logp(policy)[[last, *response[:-1]], response]
    for one, two in zip(found, again, strict=True):
        np.testing.assert_allclose(one.logp, truth, rtol=0, atol=5e-6)
        assert [x.tobytes() for x in one] == [x.tobytes() for x in two]


def test_layers_are_plain_again_afterwards_and_training_mode_is_put_back():
    policy = tiny_policy("llama")
    policy.model.train()
    layers = policy.model.model.layers
    with compiled_layers(policy.model):
        assert all(layer._compiled_call_impl is not None for layer in layers)
    assert all(layer._compiled_call_impl is None for layer in layers)
    score(policy, some_branches(), compiled=True)
    assert all(layer._compiled_call_impl is None and layer.training for layer in layers)


def test_fused_code_is_refused_where_it_cannot_run():
    with pytest.raises(PolicyError, match=r"needs the trie path.*path 'padded'"):
        score(tiny_policy("llama"), some_branches(), path="padded", compiled=True)


def test_only_long_work_in_bfloat16_on_the_trie_is_worth_it():
    policy = tiny_policy("llama")
    assert not worth_compiling(policy, 10**12, "trie")  # float32
    policy.model.bfloat16()
    assert worth_compiling(policy, 10**12, "trie")
    assert not worth_compiling(policy, 10**12, "padded")
    assert not worth_compiling(policy, 100, "trie")


def test_no_compiler_is_said_once(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    can_compile.cache_clear()
    try:
        with pytest.warns(UserWarning, match="`no-such-compiler` is not on the PATH"):
            assert not can_compile()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not can_compile()
    finally:
        can_compile.cache_clear()
