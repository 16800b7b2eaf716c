"""What a store holds, in numbers: the source of `tokensense info`.

Reads  an Archive, running or finished; takes no lock and changes nothing.
Gives  info, a mapping of plain JSON values; names_in, the nodes of a group.

Source: own work.
"""

from pathlib import Path
from typing import Any

import xarray as xr

from tokensense.store import coverage, layout, probing, provenance
from tokensense.store.archive import Archive
from tokensense.store.lock import read_holder
from tokensense.store.tree import METADATA, WORK, read_json


def info(archive: Archive) -> dict[str, Any]:
    """Sizes, nodes, blocks done and missing, holder and history.

    Args:
        archive: a store opened in any mode.

    Returns:
        `path`, `format_version`, `bytes` (of everything on disk), `nodes` (path -> bytes, sizes of
        dims, variables, attributes), `probes` (name -> state "finished" or "unfinished", blocks,
        done, missing, tokens, bytes), `holder` (of the lock, or None), `history` (events).
    """
    work = archive.path / WORK
    holder = read_holder(work)
    names = names_in(archive, "probes")
    return {
        "path": str(archive.path),
        "format_version": read_json(archive.path / METADATA, what="the store")["attributes"][
            "format_version"
        ],
        "bytes": size_of(archive.path),
        "nodes": {node: _node(archive, node) for node in archive.nodes()},
        "probes": {
            **{name: _finished(archive, name) for name in names},
            **{name: _behind(archive, name) for name in behind(archive, "probes")},
            **{name: _unfinished(archive, name) for name in probing.unfinished(work)},
        },
        "holder": None if holder is None else holder._asdict(),
        "history": provenance.history(work),
    }


def names_in(archive: Archive, group: str) -> list[str]:
    """Names of the finished nodes of a group; those from before an append are left out.

    Args:
        archive: a store opened in any mode.
        group: as `probes` or `stats`.
    """
    prefix = f"/{group}/"
    return [
        node.removeprefix(prefix)
        for node in archive.nodes()
        if node.startswith(prefix) and archive.has(node)
    ]


def behind(archive: Archive, group: str) -> list[str]:
    """Names of the nodes of a group that were made before rollouts were appended."""
    current, prefix = names_in(archive, group), f"/{group}/"
    names = [node.removeprefix(prefix) for node in archive.nodes() if node.startswith(prefix)]
    return [name for name in names if name not in current]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _node(archive: Archive, node: str) -> dict[str, Any]:
    with xr.open_dataset(
        archive.path, engine="zarr", group=node[1:], consolidated=True, chunks=None,
        decode_times=False, decode_timedelta=False,
    ) as found:  # fmt: skip
        return {
            "bytes": size_of(archive.path / node[1:]),
            "sizes": {str(dim): size for dim, size in found.sizes.items()},
            "variables": [str(name) for name in found.variables],
            "attributes": layout.plain_attributes(found.attrs, what=node),
        }


def _finished(archive: Archive, name: str) -> dict[str, Any]:
    blocks = len(archive.assembled_blocks(name))
    return {
        "state": "finished",
        "blocks": blocks,
        "done": blocks,
        "missing": [],
        "bytes": size_of(archive.path / "probes" / name),
    }


def _behind(archive: Archive, name: str) -> dict[str, Any]:
    """A probe that has not seen the rollouts that were appended after it."""
    return {
        **_finished(archive, name),
        "state": "unfinished",
        "rollouts_done": coverage.covered(archive.path, f"/probes/{name}"),
    }


def _unfinished(archive: Archive, name: str) -> dict[str, Any]:
    work = archive.path / WORK
    blocks, done = len(probing.read_plan(work, name).blocks), archive.done_blocks(name)
    return {
        "state": "unfinished",
        "blocks": blocks,
        "done": len(done),
        "missing": [index for index in range(blocks) if index not in done],
        "bytes": size_of(probing.folder_of(work, name)),
    }
