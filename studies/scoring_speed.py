"""How fast fixed traces are scored again, beside how others would do it.

    python -m studies.scoring_speed --model SmolLM2.gguf --out runs/scoring_speed
    python -m studies.scoring_speed --model SmolLM2.gguf --quick

Every variant is a process of its own on one core: it loads the model, measures the rate of the
model's own linear maps at 2,048 rows, warms up (compiling counts as warm-up and is printed apart),
then scores the whole job once. Variants take turns, for as many repeats as asked; median and range.
Peers run sorted by length at their best batch of 1, 4, 8, 16, found on a part of the job first.

The hard floor is the time of the work that nobody can avoid at that rate: each prompt and condition
once, responses once a condition, head rows of scored tokens only, causal attention (2 x parameters
of the layers' linear maps x tokens + 2 x vocabulary x hidden x scored + attention). Errors are
against a float32 body with a float64 softmax. Needs the extra `peers` for TRL, minicons, lm-eval;
what is not installed is left out and said.

Each run adds lines to `runs.csv` of the folder; a study that is stopped goes on.
"""

import argparse
import csv
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from studies.scoring_jobs import JOBS, job
from studies.scoring_peers import PEERS, reference
from tokensense.models.plan import Branch, plan_rows
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import score
from tokensense.models.selfcheck import layer_windows

BATCHES = (1, 4, 8, 16)
NEEDS = {
    "TRL logits_to_keep": "trl",
    "TRL 1.16": "trl",
    "minicons": "minicons",
    "lm-eval": "lm_eval",
}
OURS: dict[str, dict[str, Any]] = {
    "ours": {"path": "trie", "compiled": True},
    "ours, eager": {"path": "trie"},
    "ours, no sharing": {"path": "padded"},
}
REFERENCE = "reference"


@dataclass(frozen=True)
class Run:
    """One variant on one job. seconds: of the timed pass. batch: sequences at a time; ours: 0."""

    job: str
    model: str
    dtype: str
    variant: str
    scored: int
    seconds: float
    warm_up: float
    floor: float
    gigaflops: float
    batch: int
    peak_mib: float
    error_max: float
    error_mean: float


def floor_work(policy: Policy, branches: Sequence[Branch]) -> float:
    """FLOP that no way of scoring can leave out; see the head of this file."""
    config = policy.model.config.get_text_config()
    (stream,) = plan_rows(branches, tokens_per_row=2**40)
    (row,) = stream
    fed, scored = row.ids.size, len(row.rows)
    body = sum(weight.numel() for weight in _linears(policy))
    head = policy.model.get_output_embeddings().weight
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    seen = row.positions.ravel() + 1
    keys = sum(np.minimum(seen, window or seen.max()).sum() for window in layer_windows(config))
    attention = 4.0 * config.num_attention_heads * width * float(keys)
    return 2.0 * body * fed + 2.0 * head.numel() * scored + attention


def gemm_rate(policy: Policy, rows: int = 2048) -> float:
    """FLOP a second of the linear maps of one layer, one after the other; best of some seconds."""
    weights = _linears(policy)
    layer = weights[
        : max(1, len(weights) // policy.model.config.get_text_config().num_hidden_layers)
    ]
    inputs = [torch.randn(rows, w.shape[1]).to(w.dtype) for w in layer]
    work = sum(2.0 * rows * w.numel() for w in layer)
    best = 0.0
    until = time.monotonic() + 3
    while time.monotonic() < until:
        begun = time.perf_counter()
        for x, w in zip(inputs, layer, strict=True):
            functional.linear(x, w)
        best = max(best, work / (time.perf_counter() - begun))
    return best


def _linears(policy: Policy) -> list[torch.Tensor]:
    """Weights of the linear maps in the layers."""
    head = policy.model.get_output_embeddings()
    return [
        module.weight
        for module in policy.model.modules()
        if isinstance(module, nn.Linear) and module is not head
    ]


def measure(variant: str, policy: Policy, branches: list[Branch], *, name: str) -> tuple[Run, Any]:
    """Warm up, score once, and what came out: log-probabilities by branch."""
    branches = sorted(branches, key=lambda b: -len(b.context) - len(b.response))
    rate = gemm_rate(policy)
    begun = time.monotonic()
    batch, call = _prepared(variant, policy, branches)
    warm_up = time.monotonic() - begun
    before = memory_start()
    begun = time.perf_counter()
    with torch.inference_mode():
        found = call(branches)
    seconds = time.perf_counter() - begun
    peak = (status("VmHWM") - before) / 1024
    scored = sum(len(b.response) for b in branches)
    floor = floor_work(policy, branches) / rate
    figures = (scored, seconds, warm_up, floor, rate / 1e9, batch, peak, np.nan, np.nan)
    return Run(name, policy.name, policy.dtype, variant, *figures), found


def _prepared(
    variant: str, policy: Policy, branches: list[Branch]
) -> tuple[int, Callable[[list[Branch]], Any]]:
    """A warm variant: its batch, and the call to be timed."""
    part = branches[:: max(1, len(branches) // 16)][:16]
    if variant in OURS:
        score(policy, part, **OURS[variant])
        return 0, lambda all_: [s.logp for s in score(policy, all_, **OURS[variant])]
    peer = reference if variant == REFERENCE else PEERS[variant]
    if variant in (REFERENCE, "one at a time"):
        peer(policy, part[:1], 1)
        return 1, lambda all_: [x.numpy() for x in peer(policy, all_, 1)]
    times = {}
    with torch.inference_mode():
        for batch in BATCHES:
            begun = time.perf_counter()
            peer(policy, part, batch)
            times[batch] = time.perf_counter() - begun
    best = min(times, key=lambda b: times[b])
    return best, lambda all_: [x.float().numpy() for x in peer(policy, all_, best)]


def status(key: str) -> float:
    """A line of /proc/self/status, KiB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return float(next(line for line in lines if line.startswith(key)).split()[1])


def memory_start() -> float:
    """Give freed memory back and forget the peak so far; what is held now, KiB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return status("VmRSS")


# One process a run


def child(given: argparse.Namespace) -> None:
    """Run one variant and print its line as JSON."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {given.core})
    policy = load_policy(given.model, dtype=given.dtype)
    branches = job(given.job, policy, data=given.data, quick=given.quick)
    truth = given.out / f"{given.job}-{Path(given.model).stem}{'-quick' * given.quick}.npz"
    run, found = measure(given.variant, policy, branches, name=given.job)
    line = dict(run.__dict__)
    flat = np.concatenate(found)
    if given.variant == REFERENCE:
        np.savez(truth, logp=flat)
    elif truth.exists() and len(expected := np.load(truth)["logp"]) == len(flat):
        error = np.abs(flat - expected)
        line |= {"error_max": float(error.max()), "error_mean": float(error.mean())}
    print(json.dumps(line))


def spawn(variant: str, jobname: str, given: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """A run in a process of its own."""
    asked = [sys.executable, "-m", "studies.scoring_speed", "--variant", variant, "--job", jobname]
    asked += ["--model", given.model, "--dtype", dtype, "--data", str(given.data)]
    asked += ["--out", str(given.out), "--core", str(given.core), *["--quick"] * given.quick]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{variant} on {jobname} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(given: argparse.Namespace) -> None:
    """All variants in turn, as often as asked; then the table."""
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / ("quick.csv" if given.quick else "runs.csv")
    lines = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    there = [name for name in PEERS if _installed(name)]
    if left := [name for name in PEERS if name not in there]:
        print(f"not installed, left out: {', '.join(left)} (extra `peers`)")
    model = load_policy(given.model).name
    for repeat in range(given.repeats):
        for name in given.jobs:
            for dtype in given.dtypes:
                first = [REFERENCE] if dtype == "float32" and repeat == 0 else []
                for variant in (*first, *OURS, *there):
                    key = (name, model, dtype, variant)
                    done = [x for x in lines if key == tuple(x[k] for k in KEYS)]
                    if len(done) > repeat:
                        continue
                    line = spawn(variant, name, given, dtype)
                    lines.append({k: str(v) for k, v in line.items()})
                    _append(path, line)
                    print(_said(line), flush=True)
    print(table([line for line in lines if line["model"] == model]))


KEYS = ("job", "model", "dtype", "variant")
HEADER = (
    *("job", "format", "variant", "tokens/s (range)", "x ours", "of floor", "peak MiB", "batch"),
    *("error max/mean, nats", "n"),
)


def _installed(variant: str) -> bool:
    return variant not in NEEDS or importlib.util.find_spec(NEEDS[variant]) is not None


def _append(path: Path, line: dict[str, Any]) -> None:
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(line))
        if fresh:
            writer.writeheader()
        writer.writerow(line)


def _said(line: dict[str, Any]) -> str:
    return (
        f"{line['job']:>9} {line['dtype']:>8} {line['variant']:<20} {line['seconds']:7.1f} s "
        f"{line['scored'] / line['seconds']:7.0f} tok/s  floor {line['floor']:.1f} s"
    )


def table(lines: Sequence[dict[str, str]]) -> str:
    """Medians and ranges by job and number format, ratios to ours."""
    form = "{:<9} {:<9} {:<20} {:>18} {:>7} {:>8} {:>9} {:>6} {:>19} {:>2}"
    rows = [form.format(*HEADER)]
    for key in dict.fromkeys((x["job"], x["dtype"]) for x in lines):
        own = [x for x in lines if (x["job"], x["dtype"]) == key]
        ours = _median(own, "ours", "seconds")
        for variant in dict.fromkeys(x["variant"] for x in own):
            mine = [x for x in own if x["variant"] == variant]
            rates = sorted(float(x["scored"]) / float(x["seconds"]) for x in mine)
            middle = statistics.median(rates)
            share = statistics.median(float(x["floor"]) / float(x["seconds"]) for x in mine)
            error = f"{float(mine[0]['error_max']):.1e} / {float(mine[0]['error_mean']):.1e}"
            rows.append(
                form.format(
                    *key,
                    variant,
                    f"{middle:.0f} ({rates[0]:.0f}-{rates[-1]:.0f})",
                    f"{_median(own, variant, 'seconds') / ours:.2f}",
                    f"{100 * share:.0f} %",
                    f"{_median(own, variant, 'peak_mib'):.0f}",
                    mine[0]["batch"],
                    error,
                    len(mine),
                )
            )
    return "\n".join(rows)


def _median(lines: Sequence[dict[str, str]], variant: str, name: str) -> float:
    found = [float(x[name]) for x in lines if x["variant"] == variant]
    return statistics.median(found) if found else float("nan")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder or .gguf file")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/gsm8k_model_solutions.jsonl")
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--quick", action="store_true", help="a fifth of the short job, in minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/scoring_speed"))
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.variant:
        child(asked)
    else:
        main(asked)
