"""A policy whose log-probabilities are known in closed form: they depend on the last token only.

A stock `LlamaForCausalLM` with one-hot embeddings, zero `o_proj` and zero `down_proj`: attention
and MLP add exactly 0, the final norm only scales, and each logit is one entry of the head times
that scale. Every sum has one term that is not 0, so no order of summation can change a bit, and a
context can change nothing: every shift is 0 to the last bit. Its tokenizer has one token a byte, so
any text can be encoded.
"""

import math

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tokensense.models.policy import Policy

START, END = "<|start|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "<|start|>system\nBe brief.<|end|>\n{% endif %}"
    "<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
EPSILON = 1e-6


def byte_tokenizer(*, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, then `<|start|>` (256, BOS) and `<|end|>` (257, end of text)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    found = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=START, eos_token=END, pad_token=END
    )
    found.chat_template = template
    return found


def bigram_policy(*, seed: int = 0, context_length: int = 4096, padding: int = 2) -> Policy:
    """The closed-form policy.

    Args:
        seed: of the table of logits.
        context_length: tokens that it takes.
        padding: ids of the head that the tokenizer does not have (a padded vocabulary).
    """
    tokenizer = byte_tokenizer()
    width = len(tokenizer) + padding
    config = LlamaConfig(
        vocab_size=width, hidden_size=width, intermediate_size=4, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, rms_norm_eps=EPSILON,
        max_position_embeddings=context_length, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(generator=draw).mul_(0.2)
        model.model.embed_tokens.weight.copy_(torch.eye(width))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return Policy(model, tokenizer, name="bigram")


def bigram_logp(policy: Policy) -> np.ndarray:
    """Log-probabilities in closed form, float64; [previous token, token]."""
    table = policy.model.lm_head.weight.detach().double().numpy()
    scale = 1.0 / math.sqrt(1.0 / table.shape[1] + EPSILON)
    logits = (scale * table).T
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))
