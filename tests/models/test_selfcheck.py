import pytest
import torch

from tests.models.zoo import PACKED, tiny_policy
from tokensense.models.selfcheck import trie_objection


@pytest.mark.parametrize(
    ("name", "objection"),
    [
        ("mamba", "0 of 2 layers call the attention interface"),
        ("falcon", "0 of 2 layers call the attention interface"),
        ("bloom", "0 of 2 layers call the attention interface"),
        ("llama4", "its layers attend in chunks"),
    ],
)
def test_an_objection_says_what_is_wrong(name, objection):
    with torch.inference_mode():
        assert trie_objection(tiny_policy(name)) == objection


@pytest.mark.parametrize("name", PACKED)
def test_known_architectures_have_no_objection_in_bfloat16_either(name):
    policy = tiny_policy(name)
    policy.model.bfloat16()
    with torch.inference_mode():
        assert trie_objection(policy) == ""


def test_a_window_that_the_config_does_not_say_is_noticed():
    policy = tiny_policy("mistral")
    policy.model.config.sliding_window = None
    for layer in policy.model.model.layers:
        layer.self_attn.config = type(layer.self_attn.config)(**policy.model.config.to_dict())
        layer.self_attn.config._attn_implementation = "sdpa"
    with torch.inference_mode():
        assert "layers call" in trie_objection(policy)


def test_wrong_numbers_are_noticed_where_every_layer_calls():
    policy = tiny_policy("llama")
    layer = policy.model.model.layers[1].self_attn
    own = layer.forward

    def other(*args, **kwargs):
        out, weights = own(*args, **kwargs)
        # What a layer with state would do: earlier tokens of other branches leak in.
        return out + out.cumsum(1) * 0.01, weights

    layer.forward = other
    with torch.inference_mode():
        assert "a trie of two branches is off by" in trie_objection(policy)
