"""What can be read of a store, running or finished, without its lock.

Reads  a store's folder.
Gives  Reader: nodes as Datasets, blocks of unfinished probes, what is done.
Sign   none of its own.

Source: own work.
"""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokensense.checks import require_extra
from tokensense.errors import StoreError
from tokensense.store import blocks as block_files
from tokensense.store import coverage, layout, probing, tree
from tokensense.store.probing import Plan
from tokensense.store.tree import WORK

# Replaced never, and large: opened lazily. Other nodes can be replaced under a reader.
IMMUTABLE = ("/rollouts", "/probes/")


class Reader:
    """The reading half of `Archive`.

    Args:
        path: folder of the store.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._work = self.path / WORK

    def nodes(self) -> list[str]:
        """Paths of all finished nodes, "/rollouts" first."""
        return list(tree.leaves(self.path))

    def read(self, node: str, *, lazy: bool = False) -> xr.Dataset:
        """A node as it was written; /rollouts and /probes are read when their values are asked for.

        Args:
            node: path of the node.
            lazy: arrays of dask, one piece a stored chunk, so that what is computed of them need
                not fit into memory.

        Raises:
            StoreError: there is no such node, it was made before rollouts were appended, or its
                probe is not finished.
            MissingExtraError: `lazy`, and dask is not installed.
        """
        node = node_path(node)
        if lazy:
            require_extra("dask.array", "io")
        if not self.has(node):
            raise StoreError(self._missing(node))
        found = xr.open_dataset(
            self.path,
            engine="zarr",
            group=node[1:],
            consolidated=True,
            chunks={} if lazy else None,
            decode_times=False,
            decode_timedelta=False,
        )
        if not lazy and not node.startswith(IMMUTABLE):
            found = found.load()
        return layout.decode_texts(found)

    def rollouts(self, *, lazy: bool = False) -> xr.Dataset:
        """Node /rollouts: `schema.ROLLOUTS`.

        Raises:
            StoreError: none were written yet.
        """
        return self.read("/rollouts", lazy=lazy)

    def has(self, node: str) -> bool:
        """Is the node there, and made on all rollouts of the store?"""
        return coverage.made_on_all(self.path, node_path(node))

    def _missing(self, node: str) -> str:
        name = node.removeprefix("/probes/")
        have = ", ".join(self.nodes()) or "none"
        if name != node and probing.has_plan(self._work, name):
            plan, done = self._plan(name), self.done_blocks(name)
            return (
                f"reading {node} needs a finished probe; {len(done)} of {len(plan.blocks)} blocks "
                "are done. Run the probe again: it goes on where it was."
            )
        if node in self.nodes():
            return (
                f"reading {node} needs that node on all rollouts; rollouts were appended, and it "
                f"was made on the first {coverage.covered(self.path, node)} of them. Make it again "
                "(a probe scores the new ones alone); plain xarray reads it as it is."
            )
        return f"reading {node} needs that node in {self.path}; it has: {have}. Make it first."

    def is_finished(self, name: str) -> bool:
        """Is the probe assembled, and has it all rollouts?"""
        return self.has(f"/probes/{name}")

    def header(self, name: str) -> dict[str, Any] | None:
        """Header of a probe, finished or not; None where it was not started.

        Raises:
            StoreError: its plan cannot be read.
        """
        if stored := coverage.attributes_of(self.path, f"/probes/{name}"):
            return dict(json.loads(stored["header"]))
        if probing.has_plan(self._work, name):
            return self._plan(name).header
        return None

    def _plan(self, name: str) -> Plan:
        """The plan of an unfinished probe."""
        if not probing.has_plan(self._work, name):
            raise StoreError(
                f"blocks of probe {name!r} need a probe that was started; it was not, or it is "
                "finished. Call start_probe first."
            )
        return probing.read_plan(self._work, name)

    def assembled_blocks(self, name: str) -> list[tuple[int, int]]:
        """Blocks, rollouts [start, stop), that the probe's node has: all, if it is finished.

        Fewer than all once rollouts were appended; then a plan has to begin with these.
        """
        found = coverage.attributes_of(self.path, f"/probes/{name}")
        stops = [0, *found.get("block_stops", [])]
        return list(pairwise(stops))

    def done_blocks(self, name: str) -> set[int]:
        """Numbers of the blocks that are done: of all blocks, if the probe is finished."""
        kept = set(range(len(self.assembled_blocks(name))))
        if self.is_finished(name):
            return kept
        return kept | set(block_files.done(probing.folder_of(self._work, name)))

    def read_block(self, name: str, index: int) -> dict[str, np.ndarray]:
        """Arrays of a finished block of an unfinished probe.

        Raises:
            StoreError: it is not done, or damaged.
        """
        done = block_files.done(probing.folder_of(self._work, name))
        if index not in done:
            raise StoreError(
                f"block {index} of probe {name!r} needs to be done; done are {sorted(done)[:20]}. "
                "Run the probe again, or read the node if the probe is finished."
            )
        return block_files.read(done[index])


def node_path(node: str) -> str:
    """A node's path in its one spelling, "/stats/shifts".

    Raises:
        StoreError: a part of it is no plain name.
    """
    parts = node.strip("/").split("/")
    for part in parts:
        require_name(part)
    return "/" + "/".join(parts)


def require_name(name: str) -> None:
    """Check that a node's name is safe as a folder's name on every system.

    Raises:
        StoreError: it is not.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_+-]*", name):
        raise StoreError(
            f"a node needs a name of letters, digits, '_', '-' and '+'; it is {name!r}. Rename it."
        )
