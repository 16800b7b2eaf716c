"""Rollouts go into a store: the first ones, the same ones again, or more of them behind.

Reads  a `/rollouts` node as `rollouts.trajectory.assemble` makes it, and what a store has.
Gives  freeze, has_sampled.
Sign   none.

Source: own work.
"""

import json
from collections.abc import Mapping
from typing import Any

import xarray as xr

from tokensense.errors import StoreError
from tokensense.rollouts.joining import joined
from tokensense.store import coverage
from tokensense.store.archive import Archive


def freeze(archive: Archive, dataset: xr.Dataset, *, append: bool) -> None:
    """Write rollouts, or append them; closes the archive.

    Args:
        archive: open for writing.
        dataset: `schema.ROLLOUTS`.
        append: put them behind those of the store; the same ones again do nothing.

    Raises:
        StoreError: the store has other rollouts and `append` is not asked for, or they do not go
            together; nothing was written.
    """
    with archive:
        if append:
            archive.append_rollouts(dataset, join=joined)
        else:
            archive.write_rollouts(dataset)


def has_sampled(archive: Archive, sampling: Mapping[str, Any], *, append: bool) -> bool:
    """Does the store have these samples already?

    Args:
        archive: of the store.
        sampling: settings, policy and problems of the samples; JSON.
        append: others may be there.

    Raises:
        StoreError: it has others, and `append` is not asked for.
    """
    if "/rollouts" not in archive.nodes():
        return False
    rollouts = archive.rollouts()
    parts = coverage.parts_of(rollouts.attrs, rollouts.sizes["rollout"])
    stored = [json.loads(part.attributes.get("sampling", "{}")) for part in parts]
    if sampling not in stored and not append:
        raise StoreError(
            f"sampling needs a store without rollouts, or with these; {archive.path} has others: "
            f"{stored[-1] or 'imported ones'}, asked for: {dict(sampling)}. Use another store, or "
            "append to this one."
        )
    return sampling in stored
