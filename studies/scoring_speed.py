"""How fast fixed traces are scored again, beside how others would do it.

    python -m studies.scoring_speed --models SmolLM2.gguf Gemma.gguf --dtypes bfloat16
    python -m studies.scoring_speed --models SmolLM2.gguf --quick

Both models take up to an hour a number format: give one format a run. Every variant is a process of
its own on one core, forked from one that only loads the model: it measures the rate of the model's
own linear maps at 2,048 rows, warms up (compiling counts as warm-up and is kept apart), then scores
the job, again while that took less than 3 seconds. Variants take turns, for as many repeats as
asked; median and range. Peers run sorted by length at their best batch of 1, 4, 8, 16, found once:
sizes are tried upward, each on one batch, until one is a tenth slower than the best. A peer's rate
does not depend on how many batches it is given, so it is timed on whole batches spread over the
lengths, some 6 seconds of them; ours shares work between branches and always scores the whole job.

The hard floor is the time of the work that nobody can avoid at that rate: each prompt and condition
once, responses once a condition, head rows of scored tokens only, causal attention (2 x parameters
of the layers' linear maps x tokens + 2 x vocabulary x hidden x scored + attention). Errors are
against a float32 body with a float64 softmax, on branches that some 15 seconds of it reach. Needs
the extra `peers` for TRL, minicons, lm-eval; what is not installed is left out and said.

Each run adds lines to `runs.csv` of the folder; a study that is stopped goes on.
"""

import argparse
import csv
import ctypes
import importlib.util
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from studies.memory import status
from studies.scoring_jobs import JOBS, job
from studies.scoring_peers import PEERS, reference
from tokensense.models.memory import fastest_row
from tokensense.models.plan import Branch, plan_rows
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import score
from tokensense.models.selfcheck import layer_windows

BATCHES = (1, 4, 8, 16)
PEER_SECONDS = 6.0
REFERENCE_SECONDS = 15.0
LEAST_SECONDS = 3.0
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
    """One variant on one job. seconds: of the timed passes over `scored` tokens in all.

    floor: seconds of the same share of the job at the rate of its linear maps. batch: sequences at
    a time; ours: 0.
    """

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
    until = time.monotonic() + 2
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


def measure(
    variant: str, policy: Policy, branches: list[Branch], *, name: str, batch: int
) -> tuple[Run, dict[int, Any]]:
    """Warm up, score once, and what came out: log-probabilities by place in the order of length."""
    branches = sorted(branches, key=lambda b: -len(b.context) - len(b.response))
    rate = gemm_rate(policy)
    begun = time.monotonic()
    batch, places, call = _prepared(variant, policy, branches, batch)
    warm_up = time.monotonic() - begun
    asked = [branches[i] for i in places]
    before, passes, seconds = memory_start(), 0, 0.0
    begun = time.perf_counter()
    with torch.inference_mode():
        while seconds < LEAST_SECONDS:
            found = call(asked)
            passes, seconds = passes + 1, time.perf_counter() - begun
    peak = (status("VmHWM") - before) / 1024
    scored = passes * sum(len(b.response) for b in asked)
    share = scored / sum(len(b.response) for b in branches)
    floor = floor_work(policy, branches) / rate * share
    figures = (scored, seconds, warm_up, floor, rate / 1e9, batch, peak, np.nan, np.nan)
    run = Run(name, policy.name, policy.dtype, variant, *figures)
    return run, dict(zip(places, found, strict=True))


def _prepared(
    variant: str, policy: Policy, branches: list[Branch], batch: int
) -> tuple[int, list[int], Callable[[list[Branch]], Any]]:
    """A warm variant: its batch (found where 0 is given), places to be timed, and the call."""
    if variant in OURS:
        settings = OURS[variant] | {"tokens_per_row": fastest_row(policy)}
        tokens = sum(len(b.context) + len(b.response) for b in branches)
        step = max(1, tokens // (3 * fastest_row(policy)))  # what is left fills some rows
        score(policy, branches[::step], **settings)
        everything = list(range(len(branches)))
        return 0, everything, lambda all_: [s.logp for s in score(policy, all_, **settings)]
    peer = reference if variant == REFERENCE else PEERS[variant]
    alone = variant in (REFERENCE, "one at a time")
    few = Branch(branches[-1].context[-4:], branches[-1].response[:4])
    with torch.inference_mode():
        peer(policy, [few], 1)  # what happens once: imports, patches
        batch, each = best_batch(peer, policy, branches, (1,) if alone else (batch,) * bool(batch))
    limit = REFERENCE_SECONDS if variant == REFERENCE else PEER_SECONDS
    places = spread(len(branches), batch, wanted=limit / each)
    return batch, places, lambda some: [x.float().numpy() for x in peer(policy, some, batch)]


def best_batch(
    peer: Callable[..., Any], policy: Policy, branches: list[Branch], sizes: Sequence[int]
) -> tuple[int, float]:
    """The fastest batch size, sizes tried upward until one is a tenth slower; seconds a batch."""
    times: dict[int, float] = {}
    for size in sizes or BATCHES:
        begin = max(0, len(branches) // 2 - size)
        part = branches[begin : begin + size]
        begun = time.perf_counter()
        peer(policy, part, size)
        times[size] = (time.perf_counter() - begun) / len(part)
        if times[size] > 1.1 * min(times.values()):
            break
    best = min(times, key=lambda size: times[size])
    return best, times[best] * best


def spread(count: int, batch: int, *, wanted: float) -> list[int]:
    """Places of about `wanted` whole batches, evenly over the order of length."""
    starts = list(range(0, count, batch))
    step = max(1, round(len(starts) / max(1.0, wanted)))
    chosen = starts[step // 2 :: step]
    return [i for start in chosen for i in range(start, min(start + batch, count))]


def memory_start() -> float:
    """Give freed memory back and forget the peak so far; what is held now, KiB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return status("VmRSS")


# One process a run


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What some work returns, done in a forked process; its error is printed and ends the study."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(work()))
    process.start()
    theirs.close()
    try:
        return dict(ours.recv())
    except EOFError:
        sys.exit("a variant failed, for the reason above")
    finally:
        process.join()


def line_of(
    variant: str, policy: Policy, branches: list[Branch], *, name: str, batch: int, truth: Path
) -> dict[str, Any]:
    """A run as a line of the table. truth: the reference's log-probabilities, written by it."""
    run, found = measure(variant, policy, branches, name=name, batch=batch)
    line = dict(run.__dict__)
    if variant == REFERENCE:
        np.savez(truth, **{str(place): logp for place, logp in found.items()})
    elif truth.exists() and (error := _errors(found, np.load(truth))).size:
        line |= {"error_max": float(error.max()), "error_mean": float(error.mean())}
    return line


def _errors(found: dict[int, Any], truth: Any) -> np.ndarray:  # noqa: ANN401 (NpzFile)
    """|difference| in nats, over branches that both know token by token."""
    known = [place for place in found if str(place) in truth]
    pairs = [(found[place], truth[str(place)]) for place in known]
    gaps = [np.abs(mine - other) for mine, other in pairs if len(mine) == len(other)]
    return np.concatenate([np.zeros(0), *gaps])


def main(given: argparse.Namespace) -> None:
    """All variants in turn, as often as asked; then a table a model."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {given.core})
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / ("quick.csv" if given.quick else "runs.csv")
    lines = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    there = [name for name in PEERS if _installed(name)]
    if left := [name for name in PEERS if name not in there]:
        print(f"not installed, left out: {', '.join(left)} (extra `peers`)")
    for source in given.models:
        for dtype in dict.fromkeys(("float32", *given.dtypes)):  # errors need float32
            policy = load_policy(source, dtype=dtype)
            lines += score_all(policy, lines, turns(given, there, dtype), given=given, path=path)
    for model in dict.fromkeys(line["model"] for line in lines):
        print(f"\n{model}\n{table([line for line in lines if line['model'] == model])}")


def score_all(
    policy: Policy,
    before: Sequence[dict[str, str]],
    asked: Iterator[tuple[int, str, str]],
    *,
    given: argparse.Namespace,
    path: Path,
) -> list[dict[str, str]]:
    """Runs that `before` lacks, each written as it comes."""
    lines: list[dict[str, str]] = []
    jobs = {name: job(name, policy, data=given.data, quick=given.quick) for name in JOBS}
    for repeat, name, variant in asked:
        key = (name, policy.name, policy.dtype, variant)
        done = [x for x in (*before, *lines) if key == tuple(x[k] for k in KEYS)]
        if len(done) > repeat:
            continue
        batch = int(done[0]["batch"]) if done else 0
        truth = given.out / f"{name}-{policy.name.split()[0]}{'-quick' * given.quick}.npz"
        work = partial(line_of, variant, policy, jobs[name], name=name, batch=batch, truth=truth)
        line = apart(work)
        lines.append({k: str(v) for k, v in line.items()})
        _append(path, line)
        print(_said(line), flush=True)
    return lines


def turns(
    given: argparse.Namespace, peers: Sequence[str], dtype: str
) -> Iterator[tuple[int, str, str]]:
    """Repeat, job and variant of each run; what is switched off is tried on short alone."""
    jobs, repeats = (["short"], 1) if given.quick else (given.jobs, given.repeats)
    if dtype == "float32":
        yield from ((0, name, REFERENCE) for name in jobs)
    for repeat, name in itertools.product(range(repeats * (dtype in given.dtypes)), jobs):
        for variant in (*OURS, *peers):
            if variant == "ours" or variant in peers or name == "short":
                yield repeat, name, variant


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
        ours = statistics.median(_rates(own, "ours") or [float("nan")])
        for variant in dict.fromkeys(x["variant"] for x in own):
            mine = [x for x in own if x["variant"] == variant]
            rates = _rates(own, variant)
            middle = statistics.median(rates)
            share = statistics.median(float(x["floor"]) / float(x["seconds"]) for x in mine)
            error = f"{float(mine[0]['error_max']):.1e} / {float(mine[0]['error_mean']):.1e}"
            rows.append(
                form.format(
                    *key,
                    variant,
                    f"{middle:.0f} ({rates[0]:.0f}-{rates[-1]:.0f})",
                    f"{ours / middle:.2f}",
                    f"{100 * share:.0f} %",
                    f"{_median(own, variant, 'peak_mib'):.0f}",
                    mine[0]["batch"],
                    error,
                    len(mine),
                )
            )
    return "\n".join(rows)


def _rates(lines: Sequence[dict[str, str]], variant: str) -> list[float]:
    """Scored tokens a second of a variant's runs, rising."""
    mine = [x for x in lines if x["variant"] == variant]
    return sorted(float(x["scored"]) / float(x["seconds"]) for x in mine)


def _median(lines: Sequence[dict[str, str]], variant: str, name: str) -> float:
    found = [float(x[name]) for x in lines if x["variant"] == variant]
    return statistics.median(found) if found else float("nan")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", required=True, help="folders or .gguf files")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/gsm8k_model_solutions.jsonl")
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--quick", action="store_true", help="one question of the short job, once")
    parser.add_argument("--out", type=Path, default=Path("runs/scoring_speed"))
    main(parser.parse_args())
