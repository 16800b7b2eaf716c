"""The store of a study: one zarr v3 folder that plain xarray opens and that a kill cannot harm.

Reads  Datasets and block arrays; headers that say everything which decides the bytes of a probe.
Gives  /rollouts, /probes/<name> and other nodes such as /stats/<analysis>; groups above them hold
       attributes only (DataTree refuses children whose `token` differs from a parent's).
Sign   none of its own.

Rollouts are fixed before a probe starts. A probe computes blocks of whole rollouts; each is written
aside, flushed and renamed. When all are done one writer assembles the flat arrays aside and moves
them in. No timestamps, hosts or process numbers are in the nodes: apart from attribute `provenance`
(versions, commit, command of the first start) a resumed store equals an uninterrupted one.

Source: own work; the CF contiguous ragged array.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import xarray as xr

from tokensense.errors import LockError, StoreError
from tokensense.schema import ROLLOUTS
from tokensense.store import assembly, coverage, guard, layout, probing, provenance, tree
from tokensense.store import blocks as block_files
from tokensense.store.lock import WriterLock, read_holder
from tokensense.store.probing import Plan
from tokensense.store.reading import Reader, node_path, require_name
from tokensense.store.tree import METADATA, OnEvent

Mode = Literal["a", "r", "blocks"]
Join = Callable[[xr.Dataset, xr.Dataset], xr.Dataset]


def _silent(event: str) -> None:
    """What happens at each step of writing: nothing; tests put faults here."""


class Archive(Reader):
    """A store on disk.

    Args:
        path: folder of the store; made if it is missing (mode "a").
        mode: "a" reads and writes; "r" reads, takes no lock and changes nothing; "blocks" is for
            the other processes of one run: it writes blocks of a probe that the process with mode
            "a" has started, and nothing else.
        timeout: seconds to wait for another writer; 0 refuses at once. The default lets a short
            write pass by and does not wait for a probe.
        on_event: called with the name of each step of writing; for tests.

    The lock is taken for each write and given back after it; from `start_probe` to `assemble_probe`
    it is kept. `close`, or the end of a ``with`` block, gives it back.

    Raises:
        StoreError: the folder is missing (mode "r"), is no store, or has another format version.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        mode: Mode = "a",
        timeout: float = 2.0,
        on_event: OnEvent = _silent,
    ) -> None:
        super().__init__(path)
        self.mode = mode
        self._on_event = on_event
        self._lock = WriterLock(self._work, timeout=timeout)
        self._plans: dict[str, Plan] = {}
        if mode == "a" and tree.is_new(self.path):
            with self._writing(f"the new store {self.path}"):
                pass
        tree.require_format(self.path)
        # Whoever ends well takes his name off; if he is still at it, he tidies up himself.
        if mode == "a" and read_holder(self._work) is not None:
            with suppress(LockError), self._writing(str(self.path), timeout=0.0):
                pass

    def __repr__(self) -> str:
        return f"Archive({str(self.path)!r}, mode={self.mode!r})"

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back, whatever was under way; unfinished probes stay resumable."""
        self._plans.clear()
        self._lock.release(force=True)

    # Writing

    def write_rollouts(self, dataset: xr.Dataset) -> None:
        """Fix the rollouts of the store; writing equal ones again does nothing.

        Args:
            dataset: `schema.ROLLOUTS`, exactly.

        Raises:
            SchemaError: the Dataset is not as the schema says; every difference is named.
            StoreError: other rollouts are there already.
        """
        offered = guard.conform(dataset, ROLLOUTS, what="/rollouts")
        offered.attrs["digest"] = layout.content_digest(offered)
        with self._writing("/rollouts"):
            if (self.path / "rollouts" / METADATA).exists():
                with self.rollouts() as stored:
                    found = layout.differences(stored, offered)
                if found:
                    raise StoreError(
                        "a store needs the same rollouts from start to end, and it has some "
                        f"already; the new ones differ: {probing.listed(found)}. "
                        "Use another store for other rollouts; nothing was written."
                    )
                return
            self._publish({"/rollouts": offered})

    def append_rollouts(self, dataset: xr.Dataset, *, join: Join) -> int:
        """Put more rollouts behind those of the store; the same ones again do nothing.

        Probes keep what they have and go on with the new rollouts when they are run again; other
        nodes have to be made again. Until then they are not read, and stay in the store.

        Args:
            dataset: `schema.ROLLOUTS`, as for `write_rollouts`.
            join: makes one node of two, as `rollouts.joining.joined`.

        Returns:
            Rollouts that are new.

        Raises:
            SchemaError: the Dataset is not as the schema says; every difference is named.
            StoreError: the rollouts do not go together, or a probe is under way. Nothing was
                written.
        """
        offered = guard.conform(dataset, ROLLOUTS, what="appended rollouts")
        added = layout.content_digest(offered)
        with self._writing("more rollouts"):
            if not (self.path / "rollouts" / METADATA).exists():
                self._publish({"/rollouts": offered.assign_attrs({coverage.DIGEST: added})})
                return int(offered.sizes["rollout"])
            stored = self.rollouts().load()
            parts = coverage.parts_of(stored.attrs, stored.sizes["rollout"])
            if not offered.sizes["rollout"] or added in (part.added for part in parts):
                return 0
            probing.require_none_unfinished(self._work)
            both = guard.conform(join(stored, offered), ROLLOUTS, what="all rollouts")
            guard.require_beginning(stored, both)
            digest = layout.content_digest(both)
            parts.append(coverage.Part(both.sizes["rollout"], digest, added, offered.attrs))
            shown = json.dumps([part._asdict() for part in parts], sort_keys=True)
            both.attrs |= {coverage.DIGEST: digest, coverage.PARTS: shown}
            self._publish({"/rollouts": both})
        return int(offered.sizes["rollout"])

    def write_node(self, node: str, dataset: xr.Dataset) -> None:
        """Write or replace a node such as /stats/<analysis>, as a whole.

        Args:
            node: two names, the first not `rollouts` or `probes`.
            dataset: any Dataset of numbers, booleans and texts. Texts are stored as int32 flags
                and come back as texts.

        Raises:
            StoreError: the path is not allowed.
            SchemaError: the Dataset holds what cannot be stored portably.
        """
        self.write_nodes({node: dataset})

    def write_nodes(self, nodes: Mapping[str, xr.Dataset]) -> None:
        """Write or replace several nodes, each as a whole; see `write_node`.

        Args:
            nodes: path -> Dataset. All are checked before the first is written.

        Raises:
            StoreError: a path is not allowed.
            SchemaError: a Dataset holds what cannot be stored portably.
        """
        encoded = {}
        for node, dataset in ((node_path(name), found) for name, found in nodes.items()):
            if node.count("/") != 2 or node.split("/")[1] in ("rollouts", "probes"):
                raise StoreError(
                    f"a node needs a path such as /stats/<analysis>; it is {node!r}. "
                    "Rollouts are written by write_rollouts, probes by start_probe and write_block."
                )
            encoded[node] = layout.encode_texts(dataset, what=node)
        with self._writing(", ".join(encoded)):
            rollouts = coverage.attributes_of(self.path, "/rollouts")
            made_on = {coverage.MADE_ON: rollouts[coverage.DIGEST]} if rollouts else {}
            self._publish({node: found.assign_attrs(made_on) for node, found in encoded.items()})

    def _publish(self, nodes: Mapping[str, xr.Dataset]) -> None:
        stamp = {layout.PROVENANCE: json.dumps(provenance.stamp(), sort_keys=True)}
        builds = {
            node: partial(layout.write_dataset, dataset.assign_attrs(stamp))
            for node, dataset in nodes.items()
        }
        tree.publish_all(self.path, builds, on_event=self._on_event)
        for node in nodes:
            provenance.log(self._work, "written", node=node)

    # Probes

    def start_probe(
        self, name: str, header: Mapping[str, Any], blocks: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Start a probe or go on with it; takes the lock and keeps it until `assemble_probe`.

        Args:
            name: name of the probe.
            header: everything that decides its bytes: `conditions` (a list, one entry a condition),
                `policy_digest`, `tokenizer_digest`, `template_digest`, scoring settings; JSON.
            blocks: rollouts [start, stop) of each block, in order and without gaps.

        Returns:
            Numbers of the blocks to compute, ascending; empty if the probe is finished. Damaged
            blocks were removed and are among them.

        Raises:
            SchemaError: header or blocks are not as needed.
            StoreError: the probe was started with another header, or the store was made with
                another policy, tokenizer or chat template; nothing was changed.
            LockError: another process writes to the store.
        """
        require_name(name)
        with self._writing(f"probe {name!r}"):
            rollouts = self.rollouts()
            assembled = self.assembled_blocks(name)
            if self.is_finished(name):
                blocks = assembled
            plan = Plan.make(name, header, blocks, rollouts=rollouts, assembled=assembled)
            probing.require_identity(self.path, plan, rollouts.attrs)
            if assembled:
                probing.require_equal(probing.header_of(self.path, name), plan.header, name)
            if self.is_finished(name):
                return []
            folder = probing.start(self._work, plan)
            damaged = block_files.clean(folder)
            if name not in self._plans:
                self._lock.acquire()
                self._plans[name] = plan
            missing = sorted(set(range(len(plan.blocks))) - self.done_blocks(name))
            provenance.log(
                self._work,
                "probe started",
                node=f"/probes/{name}",
                missing=len(missing),
                damaged=damaged,
                stamp=plan.stamp,
            )
        return missing

    def _plan(self, name: str) -> Plan:
        return self._plans.get(name) or super()._plan(name)

    def write_block(
        self, name: str, index: int, arrays: Mapping[str, np.ndarray], **note: object
    ) -> None:
        """Write one block; when this returns it survives a kill and a power cut.

        Args:
            name: the probe.
            index: number of the block.
            arrays: every variable of `schema.PROBE`, (condition, token of the block) or
                (condition, rollout of the block).
            note: in what the block departs from the header, JSON; attribute `block_notes` has it.

        Raises:
            SchemaError: names, dtypes, shapes or flags are not as needed.
            StoreError: the probe was not started, the block is done with other bytes, or the disk
                is full.
        """
        if self.mode == "r":
            raise StoreError(self._forbidden(f"a block of probe {name!r}"))
        plan = self._plan(name)
        plan.require_block(index, arrays)
        folder = probing.folder_of(self._work, name)
        with tree.disk(folder, f"block {index} of probe {name!r}"):
            block_files.write(folder, index, arrays, note=note, on_event=self._on_event)

    def assemble_probe(
        self,
        name: str,
        *,
        coords: Mapping[str, xr.Variable | xr.DataArray],
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make /probes/<name> of the blocks and remove them; gives the lock back.

        Memory is that of three shards, whatever the number of tokens.

        Args:
            name: the probe; if it is finished, nothing happens.
            coords: variables over `condition`, among them `condition` itself.
            attrs: attributes of the node.

        Raises:
            SchemaError: coordinates or attributes are not as needed.
            StoreError: blocks are missing or damaged (these are removed), or the disk is full.
        """
        with self._writing(f"assembly of probe {name!r}"):
            if not self.is_finished(name):
                plan = self._plan(name)
                files = assembly.all_blocks(self._work, plan)
                node = self.path / "probes" / name
                noted = assembly.notes(self.path, plan, files)
                frame = plan.frame(coords, {**(attrs or {}), **noted}, rollouts=self.rollouts())
                tree.publish(
                    self.path,
                    f"/probes/{name}",
                    lambda folder: assembly.assemble(
                        folder, plan, files, frame=frame, node=node, on_event=self._on_event
                    ),
                    on_event=self._on_event,
                )
                provenance.log(self._work, "assembled", node=f"/probes/{name}")
            probing.remove(self._work, name)
            self._on_event("probe:cleaned")
            if self._plans.pop(name, None) is not None:
                self._lock.release()

    # Locking

    @contextmanager
    def _writing(self, what: str, *, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock; whoever takes it first finishes what a killed writer left."""
        if self.mode != "a":
            raise StoreError(self._forbidden(what))
        with tree.disk(self.path, what):
            fresh = self._lock.acquire(timeout=timeout)
            try:
                if fresh:
                    self._prepare()
                yield
            finally:
                self._lock.release()

    def _prepare(self) -> None:
        """Make the root of a new store, or roll an old one forward."""
        if tree.is_new(self.path):
            tree.write_group(self.path, dict(tree.ROOT))
        tree.require_format(self.path)
        for node in tree.roll_forward(self.path, on_event=self._on_event):
            provenance.log(self._work, "rolled forward", node=node)

    def _forbidden(self, what: str) -> str:
        return (
            f"writing {what} needs mode 'a'; this archive was opened with mode {self.mode!r}. "
            f"Open it with Archive({str(self.path)!r})."
        )
