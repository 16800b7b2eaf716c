"""How a node gets into the store so that a kill at any moment leaves it whole, old or new.

Reads  a folder that holds one zarr v3 group, built aside.
Gives  that group at its place in the store, with consolidated metadata on every group above it.

A node is built under `.work/building`, flushed, and renamed to `.work/ready`: that rename is the
commit mark. What follows (hide and move away the old node, move in the new one, consolidate, drop
the old one) can be done again from any point, and `roll_forward` does it for whoever opens the
store for writing next. While an old node is exchanged, the consolidated metadata do not name it: a
reader may miss it for a moment, but never sees the one's shape with the other's chunks.

`.work` also holds unfinished probes, the lock and `history.jsonl`. zarr warns of folders that it
does not know when it *lists* a group; with consolidated metadata it never lists, so plain
`xarray.open_datatree(path)` opens a running store as quietly as a finished one.

Source: own work; the layout of consolidated metadata is zarr-python's (not in the v3 spec).
"""

import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokensense.errors import StoreError, TokensenseError
from tokensense.schema import FORMAT_VERSION

WORK = ".work"
METADATA = "zarr.json"
OnEvent = Callable[[str], None]

ROOT = {
    "Conventions": "CF-1.11",
    "title": "tokensense study",
    "description": "Response tokens of language models, scored again under other conditions. "
    "Arrays over `token` run over all response tokens of all rollouts; /rollouts/length cuts them.",
    "format_version": FORMAT_VERSION,
}
DESCRIPTIONS = {
    "probes": "one node a probe: the same tokens scored again under its conditions",
    "stats": "one node an analysis",
    "credit": "one node a credit rule",
    "training": "one node a training run",
}


def is_new(path: Path) -> bool:
    """Is there nothing at `path`, save what a writer leaves that was killed at its first step?"""
    if not path.exists():
        return True
    return path.is_dir() and all(entry.name.startswith(".") for entry in path.iterdir())


def require_format(path: Path) -> None:
    """Refuse what is no store of ours, or one of another format.

    Raises:
        StoreError: there is none, it is not ours, or its format version is another.
    """
    version = format_of(path)
    if version == FORMAT_VERSION:
        return
    newer = version > FORMAT_VERSION
    raise StoreError(
        f"this tokensense needs a store of format {FORMAT_VERSION}; {path} has format {version}. "
        + ("Install a newer tokensense" if newer else f"Run `tokensense info {path} --repair`")
        + "; plain xarray.open_datatree reads it in any case. Nothing was changed."
    )


def format_of(path: Path) -> int:
    """Format version of a store.

    Raises:
        StoreError: there is none, or it is not ours.
    """
    if not (path / METADATA).is_file():
        raise StoreError(
            f"a store needs a folder with {METADATA}, made by tokensense; {path} "
            + ("has none." if path.exists() else "does not exist.")
            + " Check the path, or give a path that is not taken to begin a new store."
        )
    found = read_json(path / METADATA, what="opening a store")
    version = found.get("attributes", {}).get("format_version")
    if not isinstance(version, int):
        raise StoreError(
            f"a store needs attribute format_version; the zarr group {path} has {version!r}. "
            "It was not made by tokensense: give another path."
        )
    return version


@contextmanager
def disk(folder: Path, what: str) -> Iterator[None]:
    """Say what failed and what is kept when the system cannot write.

    Raises:
        StoreError: in place of any OSError that is not one of ours.
    """
    try:
        yield
    except TokensenseError:
        raise
    except OSError as cause:
        free = ""
        with suppress(OSError):
            free = f" ({shutil.disk_usage(folder).free:,} bytes are free)"
        raise StoreError(
            f"writing {what} needs a writable folder with room at {folder}; it gave {cause}{free}. "
            "Make room or set permissions and run again: what is done is kept."
        ) from cause


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename survives a power cut."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`; zarr itself flushes nothing."""
    for root, _, files in os.walk(folder):
        for name in files:
            with (Path(root) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))


def write_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a small file whole or not at all; flushed, unless a power cut may take it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    if flush:
        sync_folder(path.parent)


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """A JSON object from a file that tokensense or zarr wrote.

    Raises:
        StoreError: it is missing or damaged.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as cause:
        raise StoreError(
            f"{what} needs a readable JSON file {path}; reading it gave {cause!r}. "
            "Restore that file from a copy, or remove what it belongs to and run again."
        ) from cause
    if not isinstance(found, dict):
        raise StoreError(f"{what} needs a JSON object in {path}; it is {found!r:.60}. Restore it.")
    return found


def write_json(path: Path, content: dict[str, Any], *, flush: bool = True) -> None:
    """Write JSON as zarr does (indented by two); see `write_file`."""
    write_file(path, json.dumps(content, indent=2, allow_nan=False).encode(), flush=flush)


def write_group(folder: Path, attributes: dict[str, Any]) -> None:
    """Make an empty zarr v3 group."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / METADATA, {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    )


def consolidate(folder: Path, *, without: Collection[str] = ()) -> None:
    """Bring the consolidated metadata of a group and of every group below it up to date.

    Args:
        folder: the group.
        without: nodes, as paths below `folder`, that readers shall not see.
    """
    for group, fresh in outdated(folder, without=without).items():
        write_json(group / METADATA, fresh)


def outdated(folder: Path, *, without: Collection[str] = ()) -> dict[Path, dict[str, Any]]:
    """Groups whose consolidated metadata are not those of their members, and what they should be.

    Args as for `consolidate`; the innermost groups come first.
    """
    found: dict[Path, dict[str, Any]] = {}
    _gather(folder, without, found)
    return found


def _gather(
    folder: Path, without: Collection[str], found: dict[Path, dict[str, Any]]
) -> dict[str, Any]:
    """Metadata of all members of a group, name -> JSON, as zarr lays them out."""
    members: dict[str, Any] = {}
    for child in _members(folder):
        if child.name in without:
            continue
        own = read_json(child / METADATA, what="consolidating metadata")
        members[child.name] = own
        if own["node_type"] == "group":
            paths = (path.partition("/") for path in without)
            below = _gather(child, [rest for top, _, rest in paths if top == child.name], found)
            members |= {f"{child.name}/{name}": metadata for name, metadata in below.items()}
            members[child.name] = _group(own["attributes"], {})
    ordered = dict(sorted(members.items(), key=_zarr_order))
    own = read_json(folder / METADATA, what="consolidating metadata")
    fresh = _group(own["attributes"], ordered)
    if fresh != own:
        found[folder] = fresh
    return ordered


def _group(attributes: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a group; the order of keys is zarr's, so that either tool writes these bytes."""
    return {
        "attributes": attributes,
        "zarr_format": 3,
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": members},
        "node_type": "group",
    }


def _zarr_order(item: tuple[str, Any]) -> tuple[int, str]:
    name = unicodedata.normalize("NFKC", item[0]).casefold()
    return item[0].count("/"), name


def _members(folder: Path) -> list[Path]:
    """Folders of the groups and arrays directly below a group."""
    found = (child for child in folder.iterdir() if not child.name.startswith("."))
    return sorted(child for child in found if (child / METADATA).is_file())


def leaves(store: Path) -> Iterator[str]:
    """Paths of the nodes that hold arrays, "/rollouts" first and then by name."""
    found = []
    for top in _members(store):
        inner = [child for child in _members(top) if not _is_array(child)]
        found += [f"/{top.name}/{child.name}" for child in inner] or [f"/{top.name}"]
    # A group without a node yet (all its nodes gone) is no node itself.
    kept = (node for node in found if node.count("/") == 2 or node == "/rollouts")
    return iter(sorted(kept, key=lambda node: (node != "/rollouts", node)))


def _is_array(folder: Path) -> bool:
    return bool(read_json(folder / METADATA, what="listing nodes")["node_type"] == "array")


def publish(store: Path, node: str, build: Callable[[Path], None], *, on_event: OnEvent) -> None:
    """Put a node in its place, or a new one in place of an old one; see `publish_all`.

    Args:
        store: folder of the store; the caller holds its lock.
        node: path such as "/stats/shifts".
        build: makes the zarr group in the folder that it is given.
        on_event: called with the name of each step; for tests.
    """
    publish_all(store, {node: build}, on_event=on_event)


def publish_all(
    store: Path, nodes: Mapping[str, Callable[[Path], None]], *, on_event: OnEvent
) -> None:
    """Put nodes in their places, or new ones in place of old ones.

    Each is there whole or not at all, whenever a kill comes. The store's metadata, which grow with
    every node, are brought up to date once for all of them.

    Args:
        store: folder of the store; the caller holds its lock.
        nodes: path such as "/stats/shifts" -> what makes its zarr group in the folder that it is
            given.
        on_event: called with the name of each step; for tests.
    """
    labels = [_built(store, node, build, on_event=on_event) for node, build in nodes.items()]
    _finish(store, labels, on_event=on_event)


def _built(store: Path, node: str, build: Callable[[Path], None], *, on_event: OnEvent) -> str:
    """Build a node aside and set its commit mark; its label."""
    label = node.strip("/").replace("/", "@")
    building, ready = store / WORK / "building" / label, store / WORK / "ready" / label
    shutil.rmtree(building, ignore_errors=True)
    for folder in (building.parent, ready.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        build(building)
        consolidate(building)
        on_event("publish:built")
        sync_tree(building)
    except BaseException:
        # Kept only by a kill; then the next writer clears it.
        shutil.rmtree(building, ignore_errors=True)
        raise
    building.rename(ready)
    sync_folder(ready.parent)
    on_event("publish:ready")
    return label


def _finish(store: Path, labels: Sequence[str], *, on_event: OnEvent) -> None:
    """Everything after the commit marks; may be done again from any point."""
    nodes = {label: label.replace("@", "/") for label in labels}
    old = [label for label, node in nodes.items() if (store / node).exists()]
    if old:
        consolidate(store, without=[nodes[label] for label in old])
        on_event("publish:hidden")
    for label in old:
        trash = store / WORK / "trash" / label
        shutil.rmtree(trash, ignore_errors=True)
        trash.parent.mkdir(exist_ok=True)
        (store / nodes[label]).rename(trash)
        on_event("publish:moved")
    for label, node in nodes.items():
        _place(store / WORK / "ready" / label, store / node, store=store)
        on_event("publish:placed")
    consolidate(store)
    on_event("publish:consolidated")
    for label in old:
        shutil.rmtree(store / WORK / "trash" / label, ignore_errors=True)


def _place(ready: Path, target: Path, *, store: Path) -> None:
    """Move a finished node to its place, whose group is made where it is missing."""
    if target.parent != store and not (target.parent / METADATA).exists():
        about = DESCRIPTIONS.get(target.parent.name, f"nodes of {target.parent.name}")
        write_group(target.parent, {"description": about})
    ready.rename(target)
    sync_folder(target.parent)
    sync_folder(ready.parent)


def strays(store: Path) -> list[Path]:
    """Small files that a kill left half written."""
    depths = ("", "*/", "*/*/")
    return [path for depth in depths for path in store.glob(f"{depth}.*.part")]


def roll_forward(store: Path, *, on_event: OnEvent) -> list[str]:
    """Finish what a killed writer had committed, drop what it had not; the caller holds the lock.

    Returns:
        Nodes that were finished.
    """
    work = store / WORK
    for stray in strays(store):
        stray.unlink(missing_ok=True)
    shutil.rmtree(work / "building", ignore_errors=True)
    labels = sorted(entry.name for entry in (work / "ready").glob("*"))
    if labels:
        _finish(store, labels, on_event=on_event)
    else:
        consolidate(store)
    shutil.rmtree(work / "trash", ignore_errors=True)
    for probe in (work / "probes").glob("*"):
        if _is_assembled(store / "probes" / probe.name / METADATA, probe / "plan.json"):
            shutil.rmtree(probe, ignore_errors=True)
    return ["/" + label.replace("@", "/") for label in labels]


def _is_assembled(node: Path, plan: Path) -> bool:
    """Is the probe's node that of its plan, and not one from before rollouts were appended?"""
    if not node.is_file() or not plan.is_file():
        return node.is_file()
    made_on = read_json(node, what="a probe")["attributes"].get("rollouts_digest")
    return bool(made_on == read_json(plan, what="the plan of a probe").get("rollouts"))
