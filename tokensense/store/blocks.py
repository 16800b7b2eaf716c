"""Blocks of whole rollouts: files that are there whole, or not there.

Reads  arrays of one block, name -> (condition, token or rollout of the block).
Gives  one file a block, written aside, flushed and renamed. The rename is the done-mark. The name
       holds the block's number and the sha256 of its bytes, so a damaged file is found and a block
       that came out otherwise a second time is, too.

Format: NumPy's `.npz`, uncompressed, never pickled.

Source: own work (prime-rl's ready markers do the same for folders).
"""

import hashlib
import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokensense.errors import StoreError
from tokensense.store.tree import OnEvent, sync_folder

NAME = re.compile(r"(\d{6,})-([0-9a-f]{64})\.npz")
PIECE = 2**20
NOTE = "note"
THREADS = 4
# Of a zip archive: bytes before the name of a member, and where the lengths of name and extra are.
LOCAL_HEADER, LOCAL_NAME = 30, 26


def write(
    folder: Path,
    index: int,
    arrays: Mapping[str, np.ndarray],
    *,
    note: Mapping[str, Any] | None = None,
    on_event: OnEvent,
) -> Path:
    """Write one block; a block that is there already with the same bytes is left alone.

    Args:
        folder: where the probe's blocks lie.
        index: number of the block.
        arrays: what it holds.
        note: what sets it apart from other blocks, JSON; kept with it, empty for most.
        on_event: called before data, after each piece, before fsync and before rename; for tests.

    Returns:
        The finished file.

    Raises:
        StoreError: the block is there with other bytes.
    """
    buffer = io.BytesIO()
    ordered: dict[str, Any] = {n: np.ascontiguousarray(arrays[n]) for n in sorted(arrays)}
    if note:
        ordered[NOTE] = np.array(json.dumps(note, sort_keys=True))
    np.savez(buffer, **ordered)
    payload = buffer.getbuffer()
    final = folder / f"{index:06d}-{hashlib.sha256(payload).hexdigest()}.npz"
    if final.exists():
        return final
    if other := next(folder.glob(f"{index:06d}-*.npz"), None):
        raise StoreError(
            f"block {index} needs to come out the same each time; {other} is done with other "
            "bytes than now. The first result stands: leave out blocks that are done. If the "
            "device is not deterministic, let one process score one block."
        )
    aside = folder / f"{index:06d}.{os.getpid()}.{secrets.token_hex(4)}.part"
    on_event("block:begin")
    try:
        with aside.open("xb") as file:
            on_event("block:data")
            for start in range(0, len(payload), PIECE):
                file.write(payload[start : start + PIECE])
                on_event("block:piece")
            file.flush()
            on_event("block:fsync")
            os.fsync(file.fileno())
        on_event("block:rename")
        aside.rename(final)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    on_event("block:done")
    return final


def done(folder: Path) -> dict[int, Path]:
    """Finished blocks by number; only names are looked at."""
    found = ((NAME.fullmatch(path.name), path) for path in sorted(folder.glob("*.npz")))
    return {int(match[1]): path for match, path in found if match}


def is_intact(path: Path) -> bool:
    """Does the file hold the bytes that its name promises?"""
    match = NAME.fullmatch(path.name)
    try:
        with path.open("rb") as file:
            return match is not None and hashlib.file_digest(file, "sha256").hexdigest() == match[2]
    except OSError:
        return False


def clean(folder: Path) -> list[int]:
    """Remove unfinished files and damaged blocks, so that these are computed again.

    Returns:
        Numbers of the damaged blocks.
    """
    for stray in folder.glob("*.part"):
        stray.unlink(missing_ok=True)
    blocks = done(folder)
    with ThreadPoolExecutor(THREADS) as pool:  # sha256 leaves Python's lock to others
        intact = dict(zip(blocks, pool.map(is_intact, blocks.values()), strict=True))
    damaged = [index for index, good in intact.items() if not good]
    for index in damaged:
        for path in folder.glob(f"{index:06d}-*.npz"):
            path.unlink()
    return damaged


def read(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a block, after a look at its digest.

    Raises:
        StoreError: the file is damaged.
    """
    with _whole(path):
        if not is_intact(path):
            raise _damaged(path, "bytes that are not those of its name")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files if name != NOTE}


def note_of(path: Path) -> dict[str, Any]:
    """What sets a block, whose digest was looked at before, apart from others; {} for nothing.

    Raises:
        StoreError: the file is damaged.
    """
    with _whole(path), path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        return dict(json.loads(str(found[NOTE]))) if NOTE in found.files else {}


class Member(NamedTuple):
    """An array (row, column) within a block's file, read by rows where it is wanted.

    Mapping the file instead costs more than all else in assembly: a page fault for every few pages.
    """

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read_into(self, target: np.ndarray, *, row: int, column: int) -> None:
        """Fill `target` (row, column) from the rows and columns that begin at these.

        Raises:
            StoreError: the file ends too early.
        """
        width, size = self.shape[1], self.dtype.itemsize
        with self.path.open("rb", buffering=0) as file:
            for place, line in enumerate(target):
                file.seek(self.start + ((row + place) * width + column) * size)
                if file.readinto(memoryview(line).cast("B")) != line.nbytes:
                    raise StoreError(
                        f"a block needs a whole file; {self.path} ends too early. Run the probe "
                        "again: damaged blocks are computed again, the others are kept."
                    )


def member(path: Path, name: str) -> Member:
    """One array of a block whose digest was looked at before.

    Raises:
        StoreError: the file is damaged, or holds no such array.
    """
    with _whole(path), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if version != (1, 0) or is_fortran:
            raise _damaged(path, f"NumPy's format {version}, columns first: {is_fortran}")
        # Nothing is compressed, so the array begins where its header ends.
        info = archive.getinfo(f"{name}.npy")
        with path.open("rb") as raw:
            raw.seek(info.header_offset + LOCAL_NAME)
            extra = sum(int.from_bytes(raw.read(2), "little") for _ in range(2))
        start = info.header_offset + LOCAL_HEADER + extra + file.tell()
        return Member(path, start, shape, dtype)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """What a damaged block is told by."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as cause:
        raise _damaged(path, repr(cause)) from cause


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"a block needs a whole file; reading {path} gave {what}. Run the probe again: damaged "
        "blocks are computed again, the others are kept."
    )
