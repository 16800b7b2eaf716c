"""Peak memory of a training step, foreseen and measured, in a process of its own.

`python -m tests.trainer.peak POLICY TOKENS_PER_ROW CHECKPOINTING [DTYPE]` prints both in MiB as
JSON. POLICY is what `load_policy` takes, or `random`: a Llama of 8 layers of hidden 256. Two full
rows are fed, twice. Measured: what the process came to hold above what it held before the policy.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bigram import byte_tokenizer
from tests.models.peak import MIB, held
from tokensense.models.heap import steady_heap
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.lesson import Lesson
from tokensense.trainer.memory import training_need
from tokensense.trainer.run import own_copy
from tokensense.trainer.update import update

PROMPT, RESPONSE = 56, 200


def random_policy(dtype: str) -> Policy:
    """Eight layers of hidden 256."""
    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    return Policy(model, byte_tokenizer(), name="random")


def loaded(source: str, dtype: str) -> Policy:
    """A policy, by its name."""
    return random_policy(dtype) if source == "random" else load_policy(source, dtype=dtype)


def main(source: str, rows: str, checkpointing: str, dtype: str = "float32") -> None:
    """Two updates, and print what was foreseen and what was measured."""
    steady_heap()
    torch.set_num_threads(1)
    policy = loaded(source, dtype)
    longest = min(PROMPT + RESPONSE, policy.context_length)
    rng = np.random.default_rng(0)
    ids = [
        tuple(rng.integers(0, policy.head_width, longest).tolist())
        for _ in range(2 * int(rows) // longest)
    ]
    branches = [Branch(some[:PROMPT], some[PROMPT:]) for some in ids]
    config = TrainConfig(tokens_per_row=int(rows), checkpointing=checkpointing == "1")
    need = training_need(policy.model, config)
    learned = Lesson(branches, np.ones(sum(len(b.response) for b in branches)))
    assert policy.digest  # reads every weight: until then a file's pages are not in memory
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
    before = held("VmRSS")
    trained = own_copy(policy)
    optimizer = torch.optim.AdamW(trained.model.parameters(), lr=1e-5)
    for _ in range(2):
        update(trained, optimizer, learned, config=config, seed=0)
    # The start is there already, and nothing is sampled.
    start = need.held["weights that the run began from"]
    moments = {name: size for name, size in need.moments.items() if name != "sampling"}
    foreseen = need._replace(moments=moments).peak - start
    found = {"foreseen": foreseen / MIB, "measured": held("VmHWM") - before}
    found |= {"held": (sum(need.held.values()) - start) / MIB}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
