"""What scoring probes would cost: tokens, memory, time. Nothing is written.

Reads  `/rollouts`, a Policy, conditions; scores a few branches to see how fast it goes.
Gives  estimate.

Tokens are those of the real plan. Memory is `models.memory`'s closed form, good to 30 %. Time is
that of the needed operations at the pace of the sample, good to a factor 1.5 where the machine is
no busier later.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokensense.models.memory import GIB, Room, free_bytes, peak_bytes
from tokensense.models.pace import SECONDS, Pace, loads_of, measured_pace, operations
from tokensense.models.plan import Branch, Load
from tokensense.models.policy import Policy
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import Problems
from tokensense.probes.rescore import AUTO, branches_of, planned, verdict_counts
from tokensense.probes.work import Work, done_tokens
from tokensense.store.archive import Archive

SIZES = ("scored_tokens", "fed_tokens", "whole_tokens", "blocks", "remaining_tokens")


def estimate(
    archive: Archive,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    tokens_per_block: int | None = None,
    tokens_per_row: int | str = AUTO,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """What `rescore.run_probes` would cost.

    Args:
        archive: with rollouts.
        policy: scores a sample.
        conditions_by_probe: as for `run_probes`.
        tokens_per_block: as for `run_probes`.
        tokens_per_row: as for `run_probes`.
        seconds: that the sample may take.

    Returns:
        `rollouts`, `response_tokens`; `scored_tokens` (response tokens x conditions), `fed_tokens`
        (what contexts have in common once, as planned), `whole_tokens` (fed if each branch were
        alone), `blocks`, `remaining_tokens` (scored ones of blocks not done); `path`,
        `tokens_per_row`, `streams`; `peak_gib` above the weights, `weights_gib`, `free_gib`;
        `sample_tokens` (fed), `sample_seconds`, `remaining_seconds`, `tokens_per_second` (scored;
        None where nothing remains); `probes`: the same by probe, with its number of conditions and
        counts of comparability verdicts other than OK.

    Raises:
        ConditionError: see `run_probes`.
        StoreError: see `run_probes`.
        PolicyError: see `run_probes`.
        SchemaError: `tokens_per_block` or `tokens_per_row` is not positive.
    """
    problems, todo, room = planned(
        archive,
        policy,
        conditions_by_probe,
        tokens_per_block=tokens_per_block,
        tokens_per_row=tokens_per_row,
    )
    path, fused = todo[0].header["path"], "compiled" in todo[0].header
    probes: dict[str, dict[str, Any]] = {}
    peak, left, largest, sample = 0, 0.0, 0.0, list[Branch]()
    for work in todo:
        probes[work.name] = _sizes(archive, work)
        missing = _missing(archive, work)
        for index, branches in _blocks(work, problems, policy):
            loads = loads_of(branches, tokens_per_row=room.tokens_per_row, path=path)
            probes[work.name]["fed_tokens"] += sum(load.fed for load in loads)
            probes[work.name]["whole_tokens"] += sum(b.fed for b in branches if b.response)
            if index in missing and loads:
                peak = max(peak, _peak(policy, room, loads, branches, path=path))
                needed = sum(operations(policy, load) for load in loads)
                left += needed
                if needed > largest:
                    largest, sample = needed, branches
    pace = None
    if sample:
        pace = measured_pace(policy, sample, room, path=path, compiled=fused, seconds=seconds)
    remaining = sum(probe["remaining_tokens"] for probe in probes.values())
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    return {
        "rollouts": len(problems.responses),
        "response_tokens": sum(map(len, problems.responses)),
        **{size: sum(probe[size] for probe in probes.values()) for size in SIZES},
        "path": path,
        **room._asdict(),
        "peak_gib": peak / GIB,
        "weights_gib": weights / GIB,
        "free_gib": free_bytes(policy.device) / GIB,
        **_time(pace, left, remaining),
        "probes": probes,
    }


def _sizes(archive: Archive, work: Work) -> dict[str, Any]:
    """What is known of a probe before its prompts are looked at; tokens fed begin at 0."""
    scored = int(work.survey.scored.sum())
    return {
        "conditions": len(work.conditions),
        "scored_tokens": scored,
        "fed_tokens": 0,
        "whole_tokens": 0,
        "blocks": len(work.blocks),
        "remaining_tokens": scored - done_tokens(archive, work),
        "comparability": verdict_counts(work.survey.comparability),
    }


def _missing(archive: Archive, work: Work) -> set[int]:
    """Blocks that are not done."""
    return set(range(len(work.blocks))) - archive.done_blocks(work.name)


def _blocks(work: Work, problems: Problems, policy: Policy) -> Iterator[tuple[int, list[Branch]]]:
    """Number and branches of each block."""
    for index, (start, end) in enumerate(work.blocks):
        yield index, [b for _, _, b in branches_of(work, problems, policy, start=start, end=end)]


def _peak(
    policy: Policy, room: Room, loads: Sequence[Load], branches: Sequence[Branch], *, path: str
) -> int:
    """Memory of one block: less than the room allows where there is little to do."""
    most = max(load.fed for load in loads)
    taken = Room(min(room.tokens_per_row, most), min(room.streams, len(loads)))
    longest = max(branch.fed for branch in branches)
    carries = most > room.tokens_per_row
    return peak_bytes(policy, taken, longest=longest, path=path, carries=carries)


def _time(pace: Pace | None, left: float, remaining: int) -> dict[str, float | int | None]:
    """Time left at the pace of the sample."""
    if pace is None:
        return {"remaining_seconds": 0.0, "tokens_per_second": None}
    seconds = left / pace.rate
    return {
        "sample_tokens": pace.tokens,
        "sample_seconds": pace.seconds,
        "remaining_seconds": seconds,
        "tokens_per_second": remaining / seconds,
    }
