"""Layers run again in the backward pass: same loss, same gradient, less held in between."""

import pytest
import torch
import transformers as t

from tests.models.zoo import FALL_BACK, PACKED, SIZES, tiny_policy
from tokensense.errors import PolicyError
from tokensense.models.recomputing import recomputed, require_recomputable

IDS = torch.randint(250, (2, 40), generator=torch.Generator().manual_seed(0))


def gradients(model):
    """Loss, gradients, and bytes of what the forward pass keeps for the backward pass."""
    model.zero_grad()
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=IDS, use_cache=False).logits.float().log_softmax(-1)[..., 3].mean()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    loss.backward()
    size = sum(size for place, size in kept.items() if place not in weights)
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}, size


@pytest.mark.parametrize("name", [*PACKED, *FALL_BACK])
def test_loss_and_gradient_are_the_same_bytes(name):
    model = tiny_policy(name).model.eval()
    loss, found, _ = gradients(model)
    with recomputed(model):
        again, same, _ = gradients(model)
    assert torch.equal(loss, again)
    assert all(torch.equal(same[name], value) for name, value in found.items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_only_what_enters_each_layer_is_held():
    def held(layers, *, less):
        torch.manual_seed(0)
        model = t.LlamaForCausalLM(t.LlamaConfig(**{**SIZES, "num_hidden_layers": layers})).eval()
        if not less:
            return gradients(model)[2]
        with recomputed(model):
            return gradients(model)[2]

    entering = IDS.numel() * SIZES["hidden_size"] * 4  # float32
    assert held(8, less=True) - held(4, less=True) == 4 * entering
    # A layer keeps its queries, keys, values, gates and norms, too.
    assert held(8, less=False) - held(4, less=False) > 4 * 10 * entering
    assert held(8, less=True) < held(8, less=False) / 3


def test_a_layer_runs_once_more_in_the_backward_pass():
    model, calls = tiny_policy("llama").model.eval(), []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients(model)
    assert len(calls) == 1
    with recomputed(model):
        gradients(model)
    assert len(calls) == 3


def test_what_a_layer_had_is_put_back_after_an_error_too():
    model = tiny_policy("llama").model
    layer = model.model.layers[0]
    own = layer.forward
    layer.forward = own

    def fail():
        assert layer.forward is not own
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), recomputed(model):
        fail()
    assert layer.forward is own
    assert "forward" not in vars(model.model.layers[1])


def test_a_model_without_such_layers_is_refused():
    model = t.CTRLLMHeadModel(t.CTRLConfig(vocab_size=300, n_embd=32, dff=32, n_layer=1, n_head=2))
    with pytest.raises(
        PolicyError, match=r"CTRLLMHeadModel is none\. Set `checkpointing` to false"
    ):
        require_recomputable(model)
