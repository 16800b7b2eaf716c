"""Older stores brought up to the format of today.

Reads  a store of an older format.
Gives  migrate; complete, which adds what `/rollouts` lacks.
Sign   none of its own.

format 0  the store's first days: `/rollouts` without `wrong_token` and `sampled_logp`. Some stores
          without these say format 1, as the number was not raised when they came; they are read as
          they are and completed by the same function, as are those without `solution`.
format 1  today's.

Every step can be done again from any point where a kill left it: nodes are exchanged whole, and the
format's number is written last.

Source: own work.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr

from tokensense.schema import FORMAT_VERSION, NO_TEXT, NO_TOKEN, ROLLOUTS
from tokensense.store import coverage, guard, layout, probing, tree
from tokensense.store.lock import WriterLock
from tokensense.store.tree import METADATA, WORK, OnEvent, read_json, write_json

# What stands for "not known" in variables that came later.
UNKNOWN = {"solution": NO_TEXT, "wrong_token": NO_TOKEN, "sampled_logp": math.nan}


def migrate(store: Path, *, on_event: OnEvent) -> list[str]:
    """Bring a store to today's format; nothing happens to one that has it.

    Args:
        store: its folder.
        on_event: called with the name of each step; for tests.

    Returns:
        What was done, in sentences.

    Raises:
        StoreError: there is no store, it is newer than this tokensense, or the disk fails.
        LockError: another process writes to it.
    """
    found = tree.format_of(store)
    if found not in STEPS:
        tree.require_format(store)
        return []
    lock = WriterLock(store / WORK, timeout=0.0)
    with tree.disk(store, "the new format"):
        lock.acquire()
        try:
            done = [f"finished writing {n}" for n in tree.roll_forward(store, on_event=on_event)]
            for version in range(found, FORMAT_VERSION):
                done += STEPS[version](store, on_event)
                _set_format(store, version + 1)
                done.append(f"format {version} became format {version + 1}")
        finally:
            lock.release()
    return done


def _set_format(store: Path, version: int) -> None:
    root = read_json(store / METADATA, what="a new format")
    root["attributes"]["format_version"] = version
    write_json(store / METADATA, root)


def lacking(store: Path) -> list[str]:
    """Variables of the schema that `/rollouts` does not have and that may be added."""
    rollouts = store / "rollouts"
    there = (rollouts / METADATA).is_file()
    return [n for n in UNKNOWN if there and not (rollouts / n / METADATA).is_file()]


def complete(store: Path, on_event: OnEvent) -> list[str]:
    """Add to `/rollouts` what came later, as "not known"; the caller holds the lock.

    Returns:
        What was done, in sentences.

    Raises:
        SchemaError: it lacks what cannot be added.
    """
    missing = lacking(store)
    if not missing:
        return []
    with xr.open_dataset(
        store, engine="zarr", group="rollouts", consolidated=False, chunks=None
    ) as node:
        node.load()
    old = str(node.attrs.get(coverage.DIGEST, ""))
    for name in missing:
        variable = ROLLOUTS[name]
        size = node.sizes[variable.dims[0]]
        node[name] = (variable.dims, np.full(size, UNKNOWN[name], variable.dtype))
    kept = {name: node.attrs[name] for name in (layout.PROVENANCE,) if name in node.attrs}
    fresh = guard.conform(node, ROLLOUTS, what="/rollouts")
    digest = layout.content_digest(fresh)
    fresh.attrs |= {**kept, coverage.DIGEST: digest}
    # What was made on these rollouts says so by their digest: it goes first, so that a kill in
    # between leaves the old rollouts, from which the same digest follows again.
    _rename(store, old, digest)
    on_event("migrate:digests")
    tree.publish(
        store, "/rollouts", lambda folder: layout.write_dataset(fresh, folder), on_event=on_event
    )
    return [f"/rollouts: added {', '.join(missing)} (not known)"]


def _rename(store: Path, old: str, new: str) -> None:
    """Another digest of the same rollouts, wherever it is named."""
    for metadata in store.glob(f"*/*/{METADATA}"):
        node = read_json(metadata, what="a new digest")
        if node.get("attributes", {}).get(coverage.MADE_ON) == old:
            node["attributes"][coverage.MADE_ON] = new
            write_json(metadata, node)
    for name in probing.unfinished(store / WORK):
        path = probing.folder_of(store / WORK, name) / probing.PLAN
        plan = read_json(path, what="a new digest")
        if plan["rollouts"] == old:
            write_json(path, {**plan, "rollouts": new})


STEPS: dict[int, Callable[[Path, OnEvent], list[str]]] = {0: complete}
