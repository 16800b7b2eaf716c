"""Blocks of a probe become flat sharded arrays.

Reads  block files of a plan; the probe's node, where rollouts were appended after it.
Gives  all_blocks, notes; assemble, which writes the probe's zarr group.
Sign   none of its own.

Ragged blocks cannot end on the borders of zarr's regular shards, and misaligned writers lose data
without a word: so blocks are files of their own until one writer copies them into shards. `THREADS`
shards are in memory at a time: while one is compressed the next is gathered.

Source: own work.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from tokensense.errors import StoreError
from tokensense.schema import PROBE, attributes
from tokensense.segments import offsets
from tokensense.store import blocks as block_files
from tokensense.store import layout
from tokensense.store.coverage import attributes_of
from tokensense.store.probing import Plan, folder_of
from tokensense.store.shards import write_shard
from tokensense.store.tree import OnEvent

THREADS = 3
NOTES = "block_notes"


def all_blocks(work: Path, plan: Plan) -> list[Path]:
    """Files of all blocks but those kept, in order, each checked against its digest.

    Raises:
        StoreError: some are missing or damaged; the damaged ones are removed.
    """
    folder = folder_of(work, plan.name)
    damaged = block_files.clean(folder)
    done = block_files.done(folder)
    wanted = range(plan.kept, len(plan.blocks))
    missing = [index for index in wanted if index not in done]
    if missing:
        raise StoreError(
            f"assembling probe {plan.name!r} needs all {len(plan.blocks)} blocks; missing are "
            f"{missing[:20]}" + (f", of them damaged {damaged}" if damaged else "") + ". "
            "Run the probe again: it computes the missing blocks."
        )
    return [done[index] for index in wanted]


def notes(store: Path, plan: Plan, files: Sequence[Path]) -> dict[str, str]:
    """Attribute `block_notes`, JSON: by number, what sets some blocks apart; none where none is."""
    kept = attributes_of(store, f"/probes/{plan.name}")
    found = json.loads(kept.get(NOTES, "{}"))
    for index, file in enumerate(files, start=plan.kept):
        if note := block_files.note_of(file):
            found[str(index)] = note
    return {NOTES: json.dumps(found, sort_keys=True)} if found else {}


def assemble(
    folder: Path,
    plan: Plan,
    files: Sequence[Path],
    *,
    frame: xr.Dataset,
    node: Path,
    on_event: OnEvent,
) -> None:
    """Write the probe's zarr group: coordinates, then each variable shard by shard.

    Args:
        folder: where it is written.
        plan: says how large everything is.
        files: the blocks after those kept.
        frame: what is not large; see `Plan.frame`.
        node: the probe's node as it is now; read where blocks are kept.
        on_event: called after each shard; for tests.
    """
    layout.write_dataset(frame, folder)
    group = zarr.open_group(folder, mode="r+", zarr_format=3)
    rollouts = [stop - start for start, stop in plan.blocks]
    with ThreadPoolExecutor(THREADS) as pool:
        pieces: list[Future[None]] = []
        for name, variable in PROBE.items():
            lengths = plan.tokens if variable.dims[1] == "token" else rollouts
            parts: list[Any] = [block_files.member(file, name) for file in files]
            if plan.kept:
                parts.insert(0, zarr.open_array(node / name, mode="r", zarr_format=3))
                lengths = [sum(lengths[: plan.kept]), *lengths[plan.kept :]]
            edges = offsets(np.array(lengths, np.int64))
            dtype = np.dtype(variable.dtype)
            shape = (plan.conditions, int(edges[-1]))
            array = group.create_array(
                name,
                shape=shape,
                dtype=dtype,
                dimension_names=variable.dims,
                attributes=layout.plain_attributes(attributes(variable), what=name),
                # A chunk that is not there is a lost one, never an empty one.
                config={"write_empty_chunks": True},
                **layout.storage(shape, dtype),
            )
            pieces += [
                pool.submit(_copy, array, parts, edges, where=where, folder=folder / name)
                for where in _shards(array)
            ]
        try:
            for piece in pieces:
                piece.result()
                on_event("assemble:shard")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _shards(array: "zarr.Array[Any]") -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each shard (or lone chunk): no two of them share a file."""
    rows, columns = array.shards or array.chunks
    for left in range(0, array.shape[1], columns):
        for top in range(0, array.shape[0], rows):
            yield (
                slice(top, min(top + rows, array.shape[0])),
                slice(left, min(left + columns, array.shape[1])),
            )


def _copy(
    array: "zarr.Array[Any]",
    parts: Sequence[Any],
    edges: np.ndarray,
    *,
    where: tuple[slice, slice],
    folder: Path,
) -> None:
    """Gather one shard from the parts and write it."""
    rows, columns = where
    left, right = columns.start, columns.stop
    first = int(np.searchsorted(edges, left, "right")) - 1
    last = int(np.searchsorted(edges, right, "left"))
    shard = np.empty((rows.stop - rows.start, right - left), array.dtype)
    for index in range(first, last):
        low, high = max(left, edges[index]), min(right, edges[index + 1])
        inside = slice(int(low - edges[index]), int(high - edges[index]))
        target, part = shard[:, low - left : high - left], parts[index]
        if isinstance(part, block_files.Member):
            part.read_into(target, row=rows.start, column=inside.start)
        else:
            target[...] = part[rows, inside]
    if array.shards is None:
        array[rows, columns] = shard
    else:
        corner = (rows.start // array.shards[0], columns.start // array.shards[1])
        write_shard(folder / array.metadata.encode_chunk_key(corner), shard, array)
