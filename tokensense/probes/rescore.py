"""Score the frozen responses of a store again under the conditions of probes.

Reads  `/rollouts`, a Policy, conditions.
Gives  `/probes/<name>` (`schema.PROBE`) for each probe and for the base. What it would cost:
       `probes.cost`.
Sign   logp in nats; shift = logp[condition] - logp[base], positive: the token became likelier.

Probes are scored one after the other, each in blocks of whole rollouts (of whole problems where
they fit). A probe's bytes depend on its own conditions, the policy and the settings, never on what
else was asked for at the same time or on interruptions. What prompts would save by being shared
between probes is small: a prompt is fed once more for each probe, a response once for each
condition.

Several processes share the blocks and write each its own. The first one holds the store's lock,
starts and assembles the probes, and waits for the others; who scored what leaves no trace. Where
one of them ends early, what is done stays done, and the same call goes on from there.

How much is computed at once is fixed when the base is started. If memory runs out all the same, the
block under way is scored anew in smaller pieces, and so is what comes after it in this run; the
node's attribute `block_notes` says which blocks have rows of another size than the header.

Source: design section 4 (blocks) and 6. The shift by one is `models.plan`'s alone.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import xarray as xr
from tqdm.auto import tqdm

from tokensense.checks import require_member, require_range
from tokensense.errors import StoreError
from tokensense.models.memory import Room, room_for, with_less_room
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.scorer import (
    Scores,
    resolved_path,
    score,
    scoring_settings,
    worth_compiling,
)
from tokensense.probes.blocks import block_table, owners
from tokensense.probes.comparability import UNSCORED, limits
from tokensense.probes.conditions import BASE_CONDITION, Condition, require_conditions
from tokensense.probes.contexts import Problems, prompts, read_problems, survey
from tokensense.probes.node import attributes, coordinates
from tokensense.probes.resuming import as_started
from tokensense.probes.work import (
    Work,
    done_tokens,
    require_started,
    start_probe,
)
from tokensense.schema import BASE, PROBE, STATISTICS, Comparability
from tokensense.segments import offsets
from tokensense.store.archive import Archive

# Scored tokens a block: about a minute, which is what a kill can cost.
TOKENS_PER_BLOCK = {"cpu": 2**14}
LARGEST_BLOCK = 2**16
AUTO = "auto"


def run_probes(
    archive: Archive,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    processes: Processes = ALONE,
    tokens_per_block: int | None = None,
    tokens_per_row: int | str = AUTO,
    temperature: float = 1.0,
    path: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Score probes, and the base if the store has none, and write their nodes.

    Finished probes and blocks are not scored again. An interrupt (Ctrl-C, a kill) costs the block
    under way; the same call goes on from there and ends in the same bytes. Several processes all
    make the same call; it returns when all is finished.

    Args:
        archive: with rollouts, open for writing; in processes other than the first, for blocks.
        policy: scores. A base scored by another policy, or in another way, is refused.
        conditions_by_probe: probe name -> conditions; may be empty, for the base alone.
        processes: that share the work; see `models.processes.together`.
        tokens_per_block: scored tokens (tokens x conditions) a block; None for 16,384 on CPU and
            65,536 elsewhere. A rollout is never cut, whatever its size.
        tokens_per_row: see `models.scorer.score`; `auto` for those that the base was scored with,
            else for what fits in memory, see `models.memory.room_for`.
        temperature: see `models.scorer.score`.
        path: see `models.scorer.score`.
        progress: show a bar with tokens a second and time left.

    Returns:
        `scored_tokens` and `seconds` of this call, all `processes` together, and for each probe how
        many (condition, rollout) have which comparability verdict, OK left out.

    Raises:
        ConditionError: a probe has no conditions, or impossible ones.
        StoreError: rollouts, base or an unfinished probe of the store were made with another policy
            or other settings; the difference is named.
        LockError: another run writes to the store.
        ProcessError: one of the processes has ended early; blocks that are done are kept.
        PolicyError: the policy cannot take the path asked for, or a rollout does not fit in memory.
        SchemaError: `tokens_per_block`, `tokens_per_row`, `temperature` or `path` is outside what
            is allowed.
    """
    processes.wait()  # the first has repaired, on opening, what a killed run left in the store
    problems, todo, room = planned(
        archive,
        policy,
        conditions_by_probe,
        processes=processes,
        tokens_per_block=tokens_per_block,
        tokens_per_row=tokens_per_row,
        temperature=temperature,
        path=path,
    )
    began, scored = time.monotonic(), 0
    total = sum(int(work.survey.scored.sum()) for work in todo)
    done = sum(done_tokens(archive, work) for work in todo)
    # Several processes share the blocks of all probes, so that none waits at the end of each. One
    # alone starts a probe when it comes to it: until then its conditions are free.
    rounds = [[work] for work in todo] if processes.size == 1 else [todo]
    hidden = not (progress and processes.is_first)
    with tqdm(total=total, initial=done, unit="tok", unit_scale=True, disable=hidden) as bar:
        try:
            for works in rounds:
                tokens, room = _score_blocks(
                    archive,
                    policy,
                    works,
                    problems=problems,
                    processes=processes,
                    room=room,
                    bar=bar,
                )
                scored += tokens
                if processes.is_first:
                    _assemble(archive, works, archive.rollouts(), scored_by=policy.name)
            processes.wait()
        except BaseException:
            archive.close()
            raise
    return {
        "scored_tokens": scored,
        "seconds": time.monotonic() - began,
        "processes": processes.size,
        "comparability": {work.name: verdict_counts(work.survey.comparability) for work in todo},
    }


def planned(
    archive: Archive,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    processes: Processes = ALONE,
    tokens_per_block: int | None = None,
    tokens_per_row: int | str = AUTO,
    temperature: float = 1.0,
    path: str = "auto",
) -> tuple[Problems, list[Work], Room]:
    """What `run_probes` will do, and how much of it at once; arguments are its own.

    Raises:
        StoreError: see `run_probes`.
        SchemaError: see `run_probes`.
    """
    if isinstance(tokens_per_row, str):
        require_member("tokens_per_row", tokens_per_row, (AUTO,), fix="Or give a number.")
    problems = read_problems(archive.rollouts(), policy)
    asked = _as_started(archive, conditions_by_probe)
    todo = _works(archive, problems, policy, asked, tokens=tokens_per_block)
    unfinished = [work for work in todo if not archive.is_finished(work.name)]
    base, chosen = archive.header(BASE), resolved_path(policy, path)
    fixed = (base or {}).get("tokens_per_row") if tokens_per_row == AUTO else int(tokens_per_row)
    room = room_for(
        policy,
        longest=max((int(work.survey.longest.max()) for work in unfinished), default=0),
        path=chosen,
        tokens_per_row=fixed,
        processes=processes.size,
    )
    # As the base was scored, else by the size of the work. What is free differs from process to
    # process, and from one moment to the next.
    scored = sum(int(work.survey.scored.sum()) for work in unfinished)
    pays = worth_compiling(policy, scored, chosen) if base is None else "compiled" in base
    size, fused = processes.from_first([room.tokens_per_row, pays])
    size = size if tokens_per_row == AUTO else room.tokens_per_row
    settings = scoring_settings(
        policy, tokens_per_row=size, temperature=temperature, path=path, compiled=bool(fused)
    )
    todo = [work._replace(header={**work.header, **settings}) for work in todo]
    return problems, todo, room._replace(tokens_per_row=size)


def verdict_counts(comparability: np.ndarray) -> dict[str, int]:
    """How many (condition, rollout) have which verdict, OK left out."""
    found = Counter(comparability.ravel().tolist())
    return {v.name.lower(): found[v] for v in Comparability if v and found[v]}


def _works(
    archive: Archive,
    problems: Problems,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    tokens: int | None,
) -> list[Work]:
    """The base and the probes, checked and cut into blocks."""
    if not problems.responses:
        raise StoreError("a probe needs rollouts; the store has none. Import or generate some.")
    if BASE in conditions_by_probe:
        raise StoreError(f"a probe needs a name other than `{BASE}`; rename it.")
    most = TOKENS_PER_BLOCK.get(policy.device.type, LARGEST_BLOCK) if tokens is None else tokens
    require_range("tokens_per_block", float(most), 1.0, 2.0**40)
    for name, conditions in conditions_by_probe.items():
        require_conditions(name, conditions)
    bound = limits(policy, bos_id=policy.bos_id)
    found = []
    for name, conditions in {BASE: (BASE_CONDITION,), **conditions_by_probe}.items():
        seen = survey(problems, conditions, encoder=policy, limits=bound)
        header = {
            "conditions": [asdict(condition) for condition in conditions],
            "policy_digest": policy.digest,
            "tokenizer_digest": policy.tokenizer_digest,
            "template_digest": policy.template_digest,
        }
        blocks = archive.assembled_blocks(name)
        left = [group for group in problems.groups if group[0] >= (blocks or [(0, 0)])[-1][1]]
        blocks += block_table(left, seen.scored.tolist(), tokens=most)
        found.append(Work(name, tuple(conditions), seen, blocks, header))
    return found


def _as_started(
    archive: Archive, conditions_by_probe: Mapping[str, Sequence[Condition]]
) -> dict[str, Sequence[Condition]]:
    """Conditions as the probes were started with; others are refused, before any is scored."""
    return {
        name: conditions
        if (header := archive.header(name)) is None
        else as_started(name, header["conditions"], conditions)
        for name, conditions in conditions_by_probe.items()
    }


def _score_blocks(
    archive: Archive,
    policy: Policy,
    works: Sequence[Work],
    *,
    problems: Problems,
    processes: Processes,
    room: Room,
    bar: "tqdm[Any]",
) -> tuple[int, Room]:
    """Score and write the blocks of probes that are not done.

    Of several processes each writes its own; the first returns when all are there. Gives the scored
    tokens of all, and the room that this one was left with.
    """

    def look() -> None:
        """Count what the others have written."""
        for work in works:
            for index in archive.done_blocks(work.name):
                bar.update(theirs.pop((work.name, index), 0))

    left = _left(archive, works, processes)
    costs = [work.tokens(index) for work, index in left]
    owned: list[tuple[Work, int]] = []
    theirs: dict[tuple[str, int], int] = {}
    for rank, (work, index) in zip(owners(costs, processes=processes.size), left, strict=True):
        if rank == processes.rank:
            owned.append((work, index))
        else:
            theirs[work.name, index] = work.tokens(index)
    # The longest path first: if memory does not suffice, it shows at once.
    for work, index in sorted(owned, key=lambda place: -place[0].longest(place[1])[0]):
        bar.set_description(f"{work.name} {index + 1}/{len(work.blocks)}")
        arrays, room = _block(work, index, problems, policy, room=room, bar=bar)
        size = room.tokens_per_row
        note = {} if size == work.header["tokens_per_row"] else {"tokens_per_row": size}
        archive.write_block(work.name, index, arrays, **note)
        look()
    processes.wait(look)
    look()
    return sum(costs), room


def _left(archive: Archive, works: Sequence[Work], processes: Processes) -> list[tuple[Work, int]]:
    """Blocks that are not done, the same list in every process; the first one starts the probes."""
    places = [(work, index) for work in works for index in range(len(work.blocks))]
    missing = [0] * len(places)
    if processes.is_first:
        found = {(work.name, index) for work in works for index in start_probe(archive, work)}
        missing = [int((work.name, index) in found) for work, index in places]
    missing = processes.from_first(missing)
    for work in () if processes.is_first else works:
        require_started(archive, work)
    return [place for place, is_missing in zip(places, missing, strict=True) if is_missing]


def _assemble(
    archive: Archive, works: Sequence[Work], rollouts: xr.Dataset, *, scored_by: str
) -> None:
    """Make the nodes of probes whose blocks are done."""
    for work in works:
        if not archive.is_finished(work.name):
            archive.assemble_probe(
                work.name,
                coords=coordinates(work.conditions),
                attrs=attributes(work.name, work.conditions, rollouts, scored_by=scored_by),
            )


def _block(
    work: Work,
    index: int,
    problems: Problems,
    policy: Policy,
    *,
    room: Room,
    bar: "tqdm[Any]",
) -> tuple[dict[str, np.ndarray], Room]:
    """Arrays of one block, as `Archive.write_block` takes them, and the room that was enough."""
    start, end = work.blocks[index]
    first = offsets(np.array([len(ids) for ids in problems.responses[start:end]], np.int64))
    places = list(branches_of(work, problems, policy, start=start, end=end))
    done = bar.n

    def advance(tokens: int) -> None:
        bar.update(tokens)

    def attempt(room: Room) -> list[Scores]:
        bar.update(done - bar.n)  # what an attempt that ran out of memory has counted
        return score(
            policy,
            [branch for _, _, branch in places],
            tokens_per_row=room.tokens_per_row,
            temperature=work.header["temperature"],
            path=work.header["path"],
            compiled="compiled" in work.header,
            streams=room.streams,
            progress=advance,
        )

    longest, rollout = work.longest(index)
    scores, room = with_less_room(
        attempt,
        room,
        policy=policy,
        longest=longest,
        path=work.header["path"],
        name=f"rollout {rollout} under probe `{work.name}`",
    )
    shape = (len(work.conditions), int(first[-1]))
    arrays = {name: np.full(shape, np.nan, PROBE[name].dtype) for name in STATISTICS}
    for (condition, rollout, _), found in zip(places, scores, strict=True):
        span = slice(first[rollout - start], first[rollout - start + 1])
        for name in STATISTICS:
            arrays[name][condition, span] = getattr(found, name)
    arrays["comparability"] = work.survey.comparability[:, start:end]
    arrays["inserted_tokens"] = work.survey.inserted[:, start:end]
    return arrays, room


def branches_of(
    work: Work, problems: Problems, policy: Policy, *, start: int, end: int
) -> Iterator[tuple[int, int, Branch]]:
    """(condition, rollout, branch) of all that can be scored among the rollouts [start, end)."""
    for index, (first, last) in enumerate(problems.groups):
        if last <= start or first >= end:
            continue
        asked = prompts(problems, index, work.conditions, encoder=policy)
        for rollout in range(max(first, start), min(last, end)):
            for condition, prompt in enumerate(asked):
                if work.survey.comparability[condition, rollout] not in UNSCORED:
                    yield condition, rollout, Branch(prompt.ids, problems.responses[rollout])
