"""Is the store whole? And what can be made whole again without the model.

Reads  everything of a store: metadata, every chunk, blocks of unfinished probes.
Gives  check, which changes nothing; repair.
Sign   none of its own.

A repair throws nothing away that somebody made: damaged nodes and plans are moved to
`.work/damaged`, so that they can be made again (a probe) or looked at. Damaged rollouts cannot be
made again: they have to come from a copy.

Source: own work.
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr
import zarr

from tokensense.errors import TokensenseError
from tokensense.schema import FORMAT_VERSION, PROBE, ROLLOUTS
from tokensense.store import blocks as block_files
from tokensense.store import coverage, guard, layout, migration, probing, tree
from tokensense.store.lock import WriterLock, is_alive, read_holder, this_process
from tokensense.store.tree import WORK

Remedy = Literal["repair", "again", "copy"]
DAMAGED = "damaged"
# Not damaged: rollouts were appended after it.
BEHIND = "was made on the first"


class Finding(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        place: node, or file below the store.
        what: what is wrong, in a sentence.
        remedy: `repair` (can be done here), `again` (repair, then make it again), `copy` (restore
            it from a copy).
    """

    place: str
    what: str
    remedy: Remedy


def check(store: Path) -> list[Finding]:
    """Look at everything; takes no lock and changes nothing.

    Args:
        store: its folder. What a living writer is at work on is left out.

    Returns:
        What was found; empty if the store is whole.

    Raises:
        StoreError: there is no store, or it is of a newer format.
    """
    return _look(store, idle=not is_written_to(store))


def _look(store: Path, *, idle: bool) -> list[Finding]:
    """All findings; `idle`: nobody is writing, so what looks half done is half done."""
    version = tree.format_of(store)
    if version > FORMAT_VERSION:
        tree.require_format(store)
    found = []
    if version < FORMAT_VERSION:
        found.append(Finding("/", f"format {version}; today's is {FORMAT_VERSION}", "repair"))
    if idle:
        found += _leftovers(store)
        found += _consolidation(store)
    try:
        nodes = list(tree.leaves(store))
    except TokensenseError as error:
        return [*found, Finding("/", str(error), "copy")]
    for node in nodes:
        found += _node(store, node)
    return [*found, *_unfinished(store)]


def is_written_to(store: Path) -> bool:
    """Is a process of this host, or one that nobody here can see, at work on the store?"""
    holder, me = read_holder(store / WORK), this_process()
    if holder is None:
        return False
    here = holder.host == me.host or (bool(me.boot) and holder.boot == me.boot)
    return not here or is_alive(holder)


def _leftovers(store: Path) -> list[Finding]:
    """What a killed writer left; the next writer would clear it as well."""
    work = store / WORK
    found = [*tree.strays(store), *(work / "probes").glob("*/*.part"), *store.rglob("*.partial")]
    found += [path for top in ("building", "ready", "trash") for path in (work / top).glob("*")]
    if (work / "holder.json").exists():
        found.append(work / "holder.json")
    return [
        Finding(str(path.relative_to(store)), "left by a writer that was killed", "repair")
        for path in found
    ]


def _consolidation(store: Path) -> list[Finding]:
    try:
        groups = tree.outdated(store)
    except TokensenseError:
        return []  # damaged metadata; its node says so
    what = "consolidated metadata are not those of its members"
    places = (str(group.relative_to(store)).removeprefix(".") for group in groups)
    return [Finding(f"/{place}", what, "repair") for place in places]


def _node(store: Path, node: str) -> list[Finding]:
    """What is wrong with one node."""
    remedy: Remedy = "copy" if node == "/rollouts" else "again"
    folder = store / node[1:]
    damaged = [Finding(node, what, remedy) for what in _damage(folder)]
    if damaged:
        return damaged
    try:
        with xr.open_dataset(folder, engine="zarr", consolidated=False, chunks=None) as dataset:
            if node == "/rollouts":
                return _rollouts(store, dataset)
            whats = _probe(store, dataset) if node.startswith("/probes/") else []
    except (ValueError, KeyError, OSError) as error:
        return [Finding(node, f"cannot be opened: {error}", remedy)]
    found = [Finding(node, what, remedy) for what in whats]
    if not found and not coverage.made_on_all(store, node):
        first = coverage.covered(store, node)
        found = [Finding(node, f"{BEHIND} {first} rollouts", "again")]
    return found


def _damage(folder: Path) -> Iterator[str]:
    """Arrays that cannot be read to their last byte."""
    for path in sorted(child for child in folder.iterdir() if child.is_dir()):
        try:
            array = zarr.open_array(path, mode="r", zarr_format=3)
            whole = array.shards or array.chunks
            sizes = list(zip(array.shape, whole, strict=True))
            for place in product(*(range(math.ceil(size / step)) for size, step in sizes)):
                # zarr gives the fill value for a chunk that is not there: id 0 for a lost token.
                if not (path / "c").joinpath(*map(str, place)).is_file():
                    yield f"`{path.name}`: chunk {place} is missing"
                    break
                where = zip(place, whole, strict=True)
                _ = array[tuple(slice(at * step, (at + 1) * step) for at, step in where)]
        except (ValueError, KeyError, OSError, RuntimeError, TypeError) as error:
            yield f"`{path.name}`: {error!r:.200}"


def _rollouts(store: Path, dataset: xr.Dataset) -> list[Finding]:
    if missing := migration.lacking(store):
        what = f"lacks {', '.join(missing)}, which came later; they read as not known"
        return [Finding("/rollouts", what, "repair")]
    try:
        plain = guard.conform(dataset, ROLLOUTS, what="/rollouts")
    except TokensenseError as error:
        return [Finding("/rollouts", str(error), "copy")]
    if layout.content_digest(plain) != dataset.attrs.get(coverage.DIGEST):
        return [Finding("/rollouts", "its digest is not that of its arrays", "copy")]
    return []


def _probe(store: Path, dataset: xr.Dataset) -> Iterator[str]:
    """Does a probe fit the rollouts, and hold what the schema says?"""
    length = dataset["length"].values
    path = store / "rollouts" / "length"
    rollouts = zarr.open_array(path, mode="r", zarr_format=3)[: length.size]
    if not np.array_equal(length, np.asarray(rollouts)):
        yield "`length` is not that of /rollouts"
    sizes = {"rollout": length.size, "token": int(length.sum())}
    for name, variable in PROBE.items():
        if name not in dataset:
            yield f"`{name}` is missing"
        elif dataset[name].dtype != np.dtype(variable.dtype):
            yield f"`{name}` has dtype {dataset[name].dtype}, it needs {variable.dtype}"
        elif dataset[name].sizes.get(variable.dims[1]) != sizes[variable.dims[1]]:
            yield f"`{name}` has sizes {dict(dataset[name].sizes)}, it needs {sizes}"


def _unfinished(store: Path) -> Iterator[Finding]:
    work = store / WORK
    for name in probing.unfinished(work):
        folder = probing.folder_of(work, name)
        place = str(folder.relative_to(store))
        try:
            probing.read_plan(work, name)
        except (TokensenseError, TypeError) as error:
            yield Finding(place, f"its plan cannot be read: {error}", "again")
            continue
        for index, path in sorted(block_files.done(folder).items()):
            if not block_files.is_intact(path):
                yield Finding(place, f"block {index} is damaged", "again")


def repair(store: Path) -> list[str]:
    """Bring a store in order, as far as that goes without a model.

    Args:
        store: its folder.

    Returns:
        What was done, in sentences; `check` says what is left.

    Raises:
        StoreError: there is no store, it is of a newer format, or the disk fails.
        LockError: another process writes to it.
    """

    def on_event(event: str) -> None:
        """No faults here."""

    done = migration.migrate(store, on_event=on_event)
    lock = WriterLock(store / WORK, timeout=0.0)
    with tree.disk(store, "repairs"):
        lock.acquire()
        try:
            found = [f for f in _look(store, idle=True) if f.place != f"{WORK}/holder.json"]
            done += _set_aside(store, found)
            done += [f"finished writing {n}" for n in tree.roll_forward(store, on_event=on_event)]
            clear = [f for f in found if f.remedy == "repair" and f.place != "/rollouts"]
            done += [f"{finding.place}: put in order ({finding.what})" for finding in clear]
            for name in probing.unfinished(store / WORK):
                damaged = block_files.clean(probing.folder_of(store / WORK, name))
                done += [f"probe {name}: removed damaged block {index}" for index in damaged]
            if not any(finding.remedy == "copy" for finding in found):
                done += migration.complete(store, on_event)
        finally:
            lock.release()
    return done


def _set_aside(store: Path, found: Sequence[Finding]) -> list[str]:
    """Move damaged nodes and plans out of the way, to be made again."""
    done = []
    places = {
        finding.place
        for finding in found
        if finding.remedy == "again" and not finding.what.startswith(BEHIND)
    }
    for place in sorted(places):
        source = store / place.strip("/")
        if place.startswith(WORK) and not _is_broken_plan(source):
            continue  # damaged blocks alone
        label = f"{place.strip('/').replace('/', '@').replace(WORK, 'work')}-{secrets.token_hex(4)}"
        target = store / WORK / DAMAGED / label
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        done.append(f"{place}: damaged; moved to {target.relative_to(store)}, make it again")
    if done:
        tree.consolidate(store)
    return done


def _is_broken_plan(folder: Path) -> bool:
    try:
        probing.read_plan(folder.parents[1], folder.name)
    except (TokensenseError, TypeError):
        return True
    return False
