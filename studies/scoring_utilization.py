"""How much of a processor scoring uses: a 1.7B Qwen3 of random weights in bfloat16, on a GPU.

    python -m studies.scoring_utilization --device cuda
    python -m studies.scoring_utilization --tiny

MFU (model FLOP utilization) is the needed operations (each shared token once, linear maps, head on
scored rows, attention; `models.pace.operations`) a second, over what the vendor says of dense
bfloat16 matrix products; beside it the share of what a square product reaches here. Sizes of
Qwen3-1.7B's published config, weights drawn at random: time does not ask what weights say. Groups
of eight responses of 256 tokens under three conditions. Each line of `--repeats` is one pass.

Not run on a GPU by its authors so far: none was lent. `--tiny` runs it on a CPU.
"""

import argparse
import time
from collections.abc import Callable

import torch
import transformers

from studies.scoring_scaling import branches_of
from tokensense.models.pace import loads_of, operations, product_rate
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import TOKENS_PER_ROW, resolved_path, score

QWEN3 = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40_960, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
TINY = QWEN3 | {
    "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
# Dense bfloat16, FLOP a second, from the vendor's data sheets.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}


def synthetic(sizes: dict[str, object], device: str) -> Policy:
    """A Qwen3 of these sizes with random bfloat16 weights; it borrows a tiny policy's tokenizer."""
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    tokenizer = load_policy("tiny:mixed").tokenizer
    return Policy(model.to(torch.bfloat16), tokenizer, name="Qwen3 sizes, random weights")


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, a GPU's queue emptied before and after."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun


def main(given: argparse.Namespace) -> None:
    """Print a line a pass."""
    policy = synthetic(TINY if given.tiny else QWEN3, given.device)
    branches = branches_of(
        policy, 1 if given.tiny else given.groups, responses=8, response=16 if given.tiny else 256
    )
    path = resolved_path(policy, "auto")
    loads = loads_of(branches, tokens_per_row=given.tokens_per_row, path=path)
    needed = sum(operations(policy, load) for load in loads)
    reached = product_rate(policy.device, dtype=torch.bfloat16, size=256 if given.tiny else 8192)
    name = torch.cuda.get_device_name() if policy.device.type == "cuda" else "CPU"
    peak = next((rate for part, rate in PEAKS.items() if part in name), None)
    print(f"{name}: square product {reached / 1e12:.2f} TFLOP/s, path {path}, {policy!r}")
    for _ in range(given.repeats):
        seconds = timed(
            lambda: score(policy, branches, tokens_per_row=given.tokens_per_row), policy.device
        )
        tokens = sum(len(branch.response) for branch in branches)
        mfu = f"MFU {100 * needed / seconds / peak:.0f} %, " if peak else ""
        print(
            f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} tok/s, {mfu}"
            f"{100 * needed / seconds / reached:.0f} % of a square product"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens-per-row", type=int, default=8 * TOKENS_PER_ROW)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on a CPU")
    main(parser.parse_args())
