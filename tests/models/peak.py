"""Peak memory of scoring, foreseen and measured, in a process of its own.

`python -m tests.models.peak POLICY TOKENS_PER_ROW PROMPT RESPONSE BRANCHES STREAMS [DTYPE]` prints
both in MiB as JSON. POLICY is what `load_policy` takes, or `random`: a Llama of 17 M parameters.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bigram import byte_tokenizer
from tokensense.models.heap import steady_heap
from tokensense.models.memory import Room, peak_bytes
from tokensense.models.plan import Branch, loads
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import resolved_path, score

MIB = 2**20


def random_policy(dtype: str) -> Policy:
    """Wide enough for its rows to take tens of MiB."""
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=2048, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=4096,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config).to(getattr(torch, dtype)), tokenizer, name="random")


def held(name: str) -> float:
    """A size of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main(source: str, *numbers: str, dtype: str = "float32") -> None:
    """Score, and print what was foreseen and what was measured."""
    rows, prompt, response, count, streams = map(int, numbers)
    steady_heap()
    torch.set_num_threads(streams)
    policy = random_policy(dtype) if source == "random" else load_policy(source, dtype=dtype)
    path = resolved_path(policy, "auto")
    rng = np.random.default_rng(0)
    start = tuple(rng.integers(0, policy.head_width, prompt).tolist())
    branches = [
        Branch(start, tuple(rng.integers(0, policy.head_width, response).tolist()))
        for _ in range(count)
    ]
    fed = [load.fed for load in loads(branches, tokens_per_row=rows)]
    room = Room(min(rows, max(fed)), min(streams, len(fed)))
    foreseen = peak_bytes(
        policy, room, longest=prompt + response - 1, path=path, carries=max(fed) > rows
    )
    if source == "random":  # what loading a real model has taken: code, buffers, a used heap
        score(policy, branches[:2], tokens_per_row=rows)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
    before = held("VmRSS")
    score(policy, branches, tokens_per_row=rows, streams=streams)
    found = {"foreseen": foreseen / MIB, "measured": held("VmHWM") - before, "streams": len(fed)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    source, *numbers = sys.argv[1:]
    main(source, *numbers[:5], **({"dtype": numbers[5]} if len(numbers) > 5 else {}))
