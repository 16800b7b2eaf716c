"""Does scoring cost in proportion to the tokens? Groups of 1 to 64, traces of 256 to 4,096 tokens.

    python -m studies.scoring_scaling --model SmolLM2.gguf

Random ids, one core, plain code. Each line: tokens, seconds, tokens a second, and the peak of
memory above what was held before. Attention is not linear in the length of a trace; so the second
column of a trace is also given without it, by the share of operations that are attention's.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from studies.memory import status
from studies.scoring_speed import memory_start
from tokensense.models.pace import loads_of, operations
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import TOKENS_PER_ROW, score

GROUPS, LENGTHS = (1, 4, 16, 64), (256, 512, 1024, 2048, 4096)
PROMPT, RESPONSE, RESPONSES = 60, 80, 4


def branches_of(
    policy: Policy, count: int, *, responses: int = RESPONSES, response: int = RESPONSE
) -> list[Branch]:
    """Groups of responses under three conditions, random ids."""
    rng = np.random.default_rng(count)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, policy.head_width, n).tolist())

    found = []
    for _ in range(count):
        prompt, answers = ids(PROMPT), [ids(response) for _ in range(responses)]
        contexts = [(*prompt, *ids(n)) for n in (0, 10, 10)]
        found += [Branch(context, answer) for context in contexts for answer in answers]
    return found


def trace(policy: Policy, length: int) -> list[Branch]:
    """One trace of that length."""
    rng = np.random.default_rng(length)
    ids = rng.integers(0, policy.head_width, PROMPT + length).tolist()
    return [Branch(tuple(ids[:PROMPT]), tuple(ids[PROMPT:]))]


def line(name: str, policy: Policy, branches: Sequence[Branch]) -> str:
    """Score once and say what it took."""
    before = memory_start()
    begun = time.perf_counter()
    score(policy, branches)
    seconds = time.perf_counter() - begun
    peak = (status("VmHWM") - before) / 1024
    loads = loads_of(branches, tokens_per_row=TOKENS_PER_ROW, path="trie")
    every = sum(operations(policy, load) for load in loads)
    linear = sum(operations(policy, load._replace(pairs=0)) for load in loads)
    tokens = sum(len(branch.response) for branch in branches)
    return (
        f"{name:<16} {tokens:7d} tokens {seconds:8.2f} s {tokens / seconds:7.0f} tok/s, "
        f"{tokens / seconds * every / linear:7.0f} without attention's share; "
        f"peak {peak:6.0f} MiB above the start"
    )


def main(policy: Policy, counts: Sequence[int], lengths: Sequence[int]) -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    score(policy, branches_of(policy, 1))  # warm
    for count in counts:
        print(line(f"{count} groups", policy, branches_of(policy, count)), flush=True)
    for length in lengths:
        print(line(f"trace of {length}", policy, trace(policy, length)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder, .gguf file or tiny:NAME")
    parser.add_argument("--tiny", action="store_true", help="the two smallest sizes of each")
    given = parser.parse_args()
    few = slice(2 if given.tiny else None)
    main(load_policy(given.model), GROUPS[few], LENGTHS[few])
