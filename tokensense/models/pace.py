"""How long scoring takes, by scoring a little of it first.

Reads  a Policy, branches, the Room that they are scored in.
Gives  loads_of, operations, product_rate, Pace, measured_pace.
Source needed operations as scaling laws count them: two a weight and token; in attention four a
       number of a query, key and layer. Time is taken to be proportional to them: so a sample
       tells of branches that have longer prompts or responses than its own.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tokensense.models.head import head_of
from tokensense.models.memory import Room, queries_width
from tokensense.models.plan import Branch, Load, loads, plan_padded
from tokensense.models.policy import Policy
from tokensense.models.scorer import score

SECONDS = 10.0
FIRST = 64  # tokens of the first sample, which tells how large the next may be
SPARE = 0.8  # of the time left, as a larger sample may take longer than foreseen
GROWTH = 8


class Pace(NamedTuple):
    """What was scored, and how fast.

    tokens: fed. seconds: that it took. rate: needed operations a second.
    """

    tokens: int
    seconds: float
    rate: float


def loads_of(branches: Sequence[Branch], *, tokens_per_row: int, path: str) -> list[Load]:
    """What each stream costs on a path, as `scorer.score` plans it."""
    if path == "trie":
        return loads(branches, tokens_per_row=tokens_per_row)
    found = []
    for (row,) in plan_padded(branches, tokens_per_row=tokens_per_row if path == "padded" else 1):
        lines, width = row.ids.shape
        found.append(Load(row.ids.size, lines * width * (width + 1) // 2, row.rows.size))
    return found


def operations(policy: Policy, load: Load) -> float:
    """Needed floating-point operations: linear maps, head and attention."""
    model, head = policy.model, head_of(policy.model).weight
    outside = {id(model.get_input_embeddings().weight), id(head)}
    body = sum(p.numel() for p in model.parameters() if id(p) not in outside)
    attention = 4 * queries_width(policy) * model.config.get_text_config().num_hidden_layers
    return float(2 * (body * load.fed + head.numel() * load.scored) + attention * load.pairs)


def product_rate(device: torch.device, *, dtype: torch.dtype, size: int) -> float:
    """Operations a second of a square matrix product: what `operations` are held against.

    Args:
        device: where.
        dtype: of both factors.
        size: rows and columns; on a GPU thousands are needed to fill it.

    Returns:
        The best of ten.
    """
    a = torch.randn(size, size, device=device).to(dtype)
    best = 0.0
    for _ in range(10):
        begun = time.perf_counter()
        float((a @ a)[0, 0])  # waits for a GPU
        best = max(best, 2.0 * size**3 / (time.perf_counter() - begun))
    return best


def measured_pace(
    policy: Policy,
    branches: Sequence[Branch],
    room: Room,
    *,
    path: str,
    compiled: bool = False,
    seconds: float = SECONDS,
) -> Pace:
    """Score the first of some branches, more and more of them while time allows.

    Args:
        policy: scores.
        branches: real ones; the last of a sample is cut.
        room: of the run to come. The rows of a small sample are shorter, so that there are as many
            streams side by side.
        path: see `memory.peak_bytes`.
        compiled: run fused code. Making it, up to a minute, comes on top of `seconds` and is not in
            the pace: the run to come finds it in torch's cache.
        seconds: about how long it may take. Even a few tokens of a large policy can take longer.
    """
    ordered = sorted(branch for branch in branches if branch.response)
    whole = sum(branch.fed for branch in ordered)
    budget = min(FIRST, whole)
    if compiled:
        score(policy, _first_tokens(ordered, budget), path=path, compiled=True)
    end = time.monotonic() + seconds
    while True:
        sample = _first_tokens(ordered, budget)
        fed = sum(part.fed for part in loads_of(sample, tokens_per_row=budget, path=path))
        rows = max(1, min(room.tokens_per_row, fed // (4 * room.streams - 3)))
        began = time.monotonic()
        score(
            policy,
            sample,
            tokens_per_row=rows,
            path=path,
            compiled=compiled,
            streams=room.streams,
        )
        took = max(time.monotonic() - began, 1e-6)
        parts = loads_of(sample, tokens_per_row=rows, path=path)
        done = sum(operations(policy, part) for part in parts)
        pace = Pace(sum(part.fed for part in parts), took, done / took)
        left = SPARE * (end - time.monotonic())
        larger = min(whole, int(budget * min(GROWTH, left / took)))
        if larger < 1.5 * budget:
            return pace
        budget = larger


def _first_tokens(ordered: Sequence[Branch], budget: int) -> list[Branch]:
    """The first branches, `budget` tokens fed of them one by one; the last is cut."""
    found = []
    for branch in ordered:
        if branch.fed >= budget:
            ids = (*branch.context, *branch.response)[: budget + 1]
            split = min(len(branch.context), budget)
            found.append(Branch(ids[:split], ids[split:]))
            break
        found.append(branch)
        budget -= branch.fed
    return found
