"""Tiny random models of many architectures, their weights blown up so that attention matters."""

import torch
import transformers as t

from tests.bigram import byte_tokenizer
from tokensense.models.policy import Policy

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257,
}  # fmt: skip
# Windows are shorter than the paths of the tests.
GEMMA = {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 8}
PACKED = {
    "llama": lambda: t.LlamaConfig(**SIZES),
    "qwen3": lambda: t.Qwen3Config(**SIZES, head_dim=8),
    "mistral": lambda: t.MistralConfig(**SIZES, sliding_window=9),
    "gemma2": lambda: t.Gemma2Config(
        **SIZES, **GEMMA, final_logit_softcapping=5.0, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: t.Gemma3TextConfig(**SIZES, **GEMMA),
    "gpt2": lambda: t.GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=256,
        bos_token_id=256, eos_token_id=257,
    ),
    "opt": lambda: t.OPTConfig(
        vocab_size=300, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, word_embed_proj_dim=32,
    ),
    "phi": lambda: t.PhiConfig(**SIZES),  # a head with bias
    "mixtral": lambda: t.MixtralConfig(**SIZES, num_local_experts=4),
    "gptoss": lambda: t.GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, sliding_window=9),
    "cohere": lambda: t.CohereConfig(**SIZES, logit_scale=0.3),
    "granite": lambda: t.GraniteConfig(**SIZES, logits_scaling=3.0),
}  # fmt: skip
FALL_BACK = {
    "mamba": lambda: t.MambaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
    "falcon": lambda: t.FalconConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
    ),
    "bloom": lambda: t.BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4),
    "llama4": lambda: t.Llama4TextConfig(
        **SIZES, head_dim=8, attention_chunk_size=16, num_local_experts=2, intermediate_size_mlp=48
    ),
}
ALONE = {
    "phi3": lambda: t.Phi3Config(
        **SIZES, original_max_position_embeddings=30,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0,
            "original_max_position_embeddings": 30, "partial_rotary_factor": 1.0,
            "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        },
    ),
}  # fmt: skip


def tiny_policy(name: str) -> Policy:
    """One of the zoo, always the same weights."""
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config((PACKED | FALL_BACK | ALONE)[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return Policy(model, byte_tokenizer(), name=name)
