"""Is everything in order: this machine, a policy, a store? What `tokensense doctor` prints.

Reads  installed packages, devices; a Policy; a store.
Gives  environment, of_policy, of_store: Checks; a `finding` is something to mend, a `note`
       something to know.
"""

import os
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from packaging.requirements import Requirement

from tokensense.errors import ConditionError, PolicyError
from tokensense.models.compiled import can_compile
from tokensense.models.memory import free_bytes
from tokensense.models.pace import loads_of, operations, product_rate
from tokensense.models.plan import Branch
from tokensense.models.policy import PLACEMENTS, Policy
from tokensense.models.scorer import TOKENS_PER_ROW, resolved_path, score
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import limits
from tokensense.store import health

# q99 of |difference| between two row plans, nats: beyond it something is wrong with the arithmetic.
FLOORS = {"float32": 1e-3, "float16": 1.0, "bfloat16": 2.0}
MATRIX = 1024


class Check(NamedTuple):
    """What was looked at, how it is, and what it says in a sentence."""

    name: str
    state: Literal["ok", "note", "finding"]
    text: str


def environment() -> Iterator[Check]:
    """Packages, devices, memory, compiler."""
    wrong = [text for text in map(_unmet, requires("tokensense") or ()) if text]
    yield Check("packages", "finding" if wrong else "ok", "; ".join(wrong) or "as required")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Check("devices", "ok", f"{os.cpu_count()} cores, GPUs: {', '.join(gpus) or 'none'}")
    free = free_bytes(torch.device("cuda" if gpus else "cpu")) / 2**30
    state: Literal["ok", "note"] = "ok" if free > 1 else "note"
    yield Check("memory", state, f"{free:.1f} GiB free for scoring")
    if can_compile():
        yield Check("compiler", "ok", "found; long bfloat16 work on a CPU runs fused code")
    else:
        yield Check("compiler", "note", "no C++ compiler: bfloat16 on a CPU is a third slower")


def of_policy(policy: Policy) -> Iterator[Check]:
    """Attention, template, conditions, numerical floor and speed of a policy."""
    yield Check("policy", "ok", repr(policy))
    path = resolved_path(policy, "auto")
    reason = policy.objections.get("trie") or "positions follow the longest sequence fed"
    yield Check(
        "attention",
        "ok" if path == "trie" else "note",
        "shared prompts are fed once" if path == "trie" else f"path {path}, slower: {reason}",
    )
    yield from _template(policy)
    yield from _conditions(policy)
    yield from _numbers(policy, path)


def of_store(store: Path) -> Iterator[Check]:
    """A check a finding of `store.health`; one that says so where the store is whole."""
    found = health.check(store)
    for finding in found:
        yield Check(f"store {finding.place}", "finding", f"{finding.what} ({finding.remedy})")
    if not found:
        yield Check("store", "ok", f"{store} is whole")


def _unmet(text: str) -> str:
    """What is wrong with one requirement; those of extras only where they are installed."""
    asked = Requirement(text)
    extra = asked.marker is not None and not asked.marker.evaluate()
    try:
        found = version(asked.name)
    except PackageNotFoundError:
        return "" if extra else f"{asked.name} is missing"
    good = asked.specifier.contains(found, prereleases=True)
    return "" if good else f"{asked.name} {found} is not {asked.specifier}"


def _template(policy: Policy) -> Iterator[Check]:
    """Whether text can be put in at every placement, and how all answers open."""
    refused = []
    for placement in PLACEMENTS:
        try:
            policy.render("What is 2 + 3?", insert="A note.", placement=placement)
        except PolicyError as cause:
            refused.append(f"{placement}: {cause}")
    yield Check(
        "template",
        "note" if refused else "ok",
        "; ".join(refused) or f"takes text at {', '.join(PLACEMENTS)}",
    )
    opener = limits(policy, bos_id=policy.bos_id).opener
    yield Check(
        "opener",
        "ok" if opener else "finding",
        f"{opener} tokens before every response are the same"
        if opener
        else "prompts of different questions end differently: no rollout can be compared",
    )


def _conditions(policy: Policy) -> Iterator[Check]:
    """Which shipped probes the policy's tokenizer and language allow."""
    for probe, build in CATALOGUE.items():
        try:
            found = build(policy)
            yield Check(f"probe {probe}", "ok", f"{len(found)} conditions")
        except ConditionError as cause:
            yield Check(f"probe {probe}", "note", str(cause))


def _numbers(policy: Policy, path: str) -> Iterator[Check]:
    """Numerical floor between two row plans; speed, as a share of what a matrix product reaches."""
    branches = _sample(policy)
    alone = score(policy, branches, tokens_per_row=1, path="padded" if path == "trie" else path)
    seconds = min(_timed(policy, branches, path) for _ in range(3))
    together = score(policy, branches, path=path)
    gaps = [np.abs(a.logp - b.logp) for a, b in zip(alone, together, strict=True)]
    floor = float(np.quantile(np.concatenate(gaps), 0.99))
    limit = FLOORS[policy.dtype]
    yield Check(
        "numerical floor",
        "ok" if floor <= limit else "finding",
        f"q99 {floor:.1e} nats between two row plans; up to {limit:g} is usual in {policy.dtype}",
    )
    tokens = sum(len(branch.response) for branch in branches)
    loads = loads_of(branches, tokens_per_row=TOKENS_PER_ROW, path=path)
    rate = sum(operations(policy, load) for load in loads) / seconds
    reached = product_rate(policy.device, dtype=getattr(torch, policy.dtype), size=MATRIX)
    yield Check(
        "speed",
        "ok",
        f"{tokens / seconds:.0f} response tokens/s on a small sample, {rate / reached:.0%} of what "
        f"a product of {MATRIX} x {MATRIX} matrices reaches here",
    )


def _sample(policy: Policy) -> list[Branch]:
    """Random ids: four responses of 32 tokens under two contexts that begin alike."""
    rng = np.random.default_rng(0)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, policy.head_width, n).tolist())

    prompt, responses = ids(20), [ids(32) for _ in range(4)]
    contexts = [(*prompt, *ids(8)) for _ in range(2)]
    return [Branch(context, response) for context in contexts for response in responses]


def _timed(policy: Policy, branches: list[Branch], path: str) -> float:
    """Seconds of scoring."""
    begun = time.perf_counter()
    score(policy, branches, path=path)
    return time.perf_counter() - begun
