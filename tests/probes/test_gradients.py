"""Inner products of token gradients against gradients taken token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.zoo import PACKED, tiny_policy
from tokensense.errors import PolicyError, SchemaError, StatisticsError
from tokensense.models import tiny
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.probes import gradients
from tokensense.probes.gradients import (
    center_products,
    identity_error,
    inner_products,
    own_products,
    pooled_gradients,
    resolved_method,
    squared_norm,
)

WORDS = ("<pad>", "<unk>", "<eos>", *(f"w{place}" for place in range(37)))


def small_policy(*, double: bool = False) -> Policy:
    size = tiny.Size(hidden=16, layers=2, heads=2, inner=24)
    model, tokenizer = tiny.new_model(WORDS, size, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return Policy(model.double() if double else model, tokenizer, name="small")


def branches_of(policy: Policy, *, seed: int = 0, count: int = 4) -> list[Branch]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, size=(count, 2)).tolist()
    return [
        Branch(*(tuple(rng.integers(3, policy.head_width, size=n).tolist()) for n in pair))
        for pair in lengths
    ]


def token_gradients(policy: Policy, branches: list[Branch]) -> np.ndarray:
    """One backward pass a token through the model's own logits; [token, parameter]."""
    parameters = list(policy.model.parameters())
    rows = []
    for context, response in branches:
        ids = torch.tensor([context + response])
        logp = policy.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        for place, token in enumerate(response, start=len(context) - 1):
            found = torch.autograd.grad(
                logp[place, token], parameters, retain_graph=True, allow_unused=True
            )
            parts = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parameters, found, strict=True)
            ]
            rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).double().numpy()


def drawn(tokens: int, pools: int = 2, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(pools, tokens))


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """Length of the difference, relative."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("tokens_per_row", [1, 2048])
def test_gradients_of_single_tokens_give_the_same(double, tokens_per_row):
    policy = small_policy(double=double)
    branches = branches_of(policy)
    each = token_gradients(policy, branches)
    weights = drawn(len(each))
    expected = weights @ each
    pooled = pooled_gradients(policy, branches, weights, tokens_per_row=tokens_per_row)
    assert off(pooled.numpy(), expected) < 1e-6
    products = inner_products(policy, branches, pooled, tokens_per_row=tokens_per_row)
    assert off(products, expected @ each.T) < 1e-6
    assert resolved_method(policy, "auto") == "jvp"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mistral"])
def test_other_architectures(name):
    assert name in PACKED
    policy = tiny_policy(name)
    branches = branches_of(policy, count=2)
    each = token_gradients(policy, branches)
    weights = drawn(len(each), pools=1)
    (found,) = own_products(policy, branches, weights)
    expected = each @ (weights[0] @ each)
    assert off(found.products, expected) < 3e-6


@given(seed=st.integers(0, 1000))
@settings(max_examples=5)
def test_the_identity_holds_for_any_weighting(seed):
    policy = small_policy()
    branches = branches_of(policy, seed=seed, count=3)
    weights = drawn(sum(len(b.response) for b in branches), seed=seed)
    for given_weights, found in zip(weights, own_products(policy, branches, weights), strict=True):
        squared = squared_norm(found.gradient)
        assert (given_weights * found.products).sum() == pytest.approx(squared, rel=1e-5)


def test_parameters_and_mode_are_left_as_they_were():
    policy = small_policy()
    before = {n: p.clone() for n, p in policy.model.state_dict().items()}
    policy.model.train()
    branches = branches_of(policy)
    weights = drawn(sum(len(b.response) for b in branches), pools=1)
    for method in ("jvp", "difference"):
        own_products(policy, branches, weights, method=method)
    assert policy.model.training
    assert all(torch.equal(before[n], p) for n, p in policy.model.state_dict().items())
    assert all(p.grad is None for p in policy.model.parameters())


def test_centers_of_exact_gradients():
    policy = small_policy()
    branches = branches_of(policy)
    each = token_gradients(policy, branches)
    sides = np.random.default_rng(4).dirichlet(np.ones(len(each)), size=2)
    products, positive, negative = center_products(policy, branches, *sides)
    means = sides @ each
    assert off(products, each @ (means[0] - means[1])) < 1e-6
    np.testing.assert_allclose((positive, negative), (means**2).sum(1), rtol=1e-6)


def test_a_padding_token_in_the_text_is_a_token():
    policy = small_policy()
    assert policy.model.model.embed_tokens.padding_idx == 0
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[0] = 0.1
    branches = [Branch((3, 0, 4), (5, 6)), Branch((7,), (0, 8, 0, 9))]
    (found,) = own_products(policy, branches, drawn(6, pools=1))
    assert policy.model.model.embed_tokens.padding_idx == 0
    assert squared_norm(found.gradient) > 0


def test_weights_of_nothing_give_nothing():
    policy = small_policy()
    branches = branches_of(policy)
    zero = np.zeros((1, sum(len(b.response) for b in branches)))
    (found,) = own_products(policy, branches, zero)
    assert squared_norm(found.gradient) == 0
    assert (found.products == 0).all()
    assert (inner_products(policy, branches, found.gradient[None], method="difference") == 0).all()


def test_differences_are_close():
    policy = small_policy()
    branches = branches_of(policy)
    weights = drawn(sum(len(b.response) for b in branches), pools=1)
    exact, near = (
        own_products(policy, branches, weights, method=method)[0].products
        for method in ("jvp", "difference")
    )
    assert np.abs(near - exact).mean() < 0.01 * np.abs(exact).mean()
    assert (near != exact).any()


class _Deaf(torch.autograd.Function):
    """Identity with a backward, and with a tangent of zero, as a custom op has it."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def jvp(ctx, tangent):
        return torch.zeros_like(tangent)


def deaf(policy: Policy) -> None:
    """Give one layer a wrong forward mode."""
    policy.model.model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, output: _Deaf.apply(output)
    )


def test_a_layer_with_a_tangent_of_zero_is_found_out():
    policy = small_policy()
    deaf(policy)
    branches = branches_of(policy)
    weights = drawn(sum(len(b.response) for b in branches), pools=1)
    assert resolved_method(policy, "auto") == "difference"
    with pytest.raises(PolicyError, match=r"the forward mode is off by .*method='difference'"):
        inner_products(policy, branches, torch.zeros(1, 1).expand(1, _size(policy)), method="jvp")
    expected = own_products(small_policy(), branches, weights)[0].products
    found = own_products(policy, branches, weights)[0].products
    assert np.abs(found - expected).mean() < 0.01 * np.abs(expected).mean()
    # The check of every result, were the one before the first use not enough.
    policy.objections[gradients.OBJECTION] = ""
    with pytest.raises(StatisticsError, match=r"\|\|g\|\|\^2; under small it is off by"):
        own_products(policy, branches, weights)


def _size(policy: Policy) -> int:
    return sum(p.numel() for p in policy.model.parameters())


def test_the_error_of_the_identity():
    weights, products = np.array([1.0, -2.0]), np.array([3.0, 0.5])
    assert identity_error(weights, products, 2.0) == 0
    # Half of it, less what rounding may do to 3 + 1.
    assert identity_error(weights, products, 4.0) == pytest.approx((2.0 - 4e-6) / 4.0)
    assert identity_error(weights, products * 0, 0.0) == 0
    assert identity_error(weights, products, 0.0) == 1


def test_what_does_not_fit_is_refused():
    policy = small_policy()
    branches = branches_of(policy)
    tokens = sum(len(b.response) for b in branches)
    with pytest.raises(SchemaError, match=f"each of the {tokens} response tokens"):
        pooled_gradients(policy, branches, np.ones((1, tokens + 1)))
    with pytest.raises(SchemaError, match="all finite: False"):
        pooled_gradients(policy, branches, np.full((1, tokens), np.nan))
    with pytest.raises(SchemaError, match=f"each of the {_size(policy)} parameters"):
        inner_products(policy, branches, torch.zeros(1, 5))
    with pytest.raises(SchemaError, match="method"):
        inner_products(policy, branches, torch.zeros(1, _size(policy)), method="guess")
    with pytest.raises(PolicyError, match="branch 0 has none"):
        pooled_gradients(policy, [Branch((), (1,))], np.ones((1, 1)))
