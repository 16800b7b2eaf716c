"""A random two-layer Llama over bytes: its shifts are not zero, and it scores in milliseconds."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bigram import TEMPLATE, byte_tokenizer
from tokensense.models.policy import Policy


def tiny_policy(*, seed=0, context_length=2048, template=TEMPLATE):
    tokenizer = byte_tokenizer(template=template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8.0 if parameter.ndim == 2 else 1.0)  # sharper than a fresh model's
    return Policy(model, tokenizer, name="tiny")
