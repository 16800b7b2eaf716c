"""One writer a store: who holds it, and what a second one is told.

Reads  `.work/lock` (an advisory lock of the operating system) and `.work/holder.json`.
Gives  the lock, or a LockError that names process, host, command and start of the holder.

The system drops its lock when a process dies, so a dead holder on this machine never blocks.
The first of several processes of one run holds it for all of them: the others write nothing but
files of blocks, aside and renamed, and only after the first has the lock. If it dies, one of them
may still write a block of its share: that block comes out the same whoever writes it, and where the
probe is assembled by then, the write is refused.

Between hosts that share a file system the lock cannot be relied on; there the holder file alone
counts, and it stays when its process is killed.

Source: own work on top of filelock.
"""

import json
import os
import shlex
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from tokensense.errors import LockError
from tokensense.store.tree import write_json

LOCK = "lock"
HOLDER = "holder.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Holder(NamedTuple):
    """A process that writes to a store. `boot` tells machines apart where host names do not."""

    pid: int
    host: str
    boot: str
    command: str
    start: str

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} (`{self.command:.200}`) since {self.start}"


def this_process() -> Holder:
    """The holder that this process would be."""
    boot = ""
    with suppress(OSError):
        boot = BOOT_ID.read_text().strip()
    start = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(os.getpid(), socket.gethostname(), boot, shlex.join(sys.argv), start)


def read_holder(work: Path) -> Holder | None:
    """The holder by its file; None where there is none, or where it cannot be read."""
    try:
        return Holder(**json.loads((work / HOLDER).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_alive(holder: Holder) -> bool:
    """Does a process of that number run on this machine?"""
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class WriterLock:
    """The store's lock; acquiring twice in one object needs releasing twice.

    Args:
        work: the store's `.work` folder.
        timeout: seconds to wait for another holder; 0 refuses at once.
    """

    def __init__(self, work: Path, *, timeout: float = 0.0) -> None:
        self.work = work
        self.timeout = timeout
        # Threads of one process share the lock: they share the Archive as well.
        self._lock = FileLock(str(work / LOCK), thread_local=False)
        self._depth = 0

    @property
    def held(self) -> bool:
        """Does this object hold the lock?"""
        return self._depth > 0

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Take the lock.

        Args:
            timeout: seconds to wait, in place of the object's own.

        Returns:
            True if it was not held before.

        Raises:
            LockError: another process holds it, or a holder on another host may do so.
        """
        if self._depth == 0:
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=self.timeout if timeout is None else timeout)
            except Timeout as cause:
                raise LockError(self._refusal()) from cause
            try:
                self._require_here()
                write_json(self.work / HOLDER, this_process()._asdict(), flush=False)
            except BaseException:
                self._lock.release(force=True)
                raise
        self._depth += 1
        return self._depth == 1

    def release(self, *, force: bool = False) -> None:
        """Give the lock back; with `force`, however often it was taken."""
        if self._depth == 0:
            return
        self._depth = 0 if force else self._depth - 1
        if self._depth == 0:
            # The file goes first: after the release another process may have written its own.
            with suppress(OSError):
                (self.work / HOLDER).unlink()
            self._lock.release(force=True)

    def _refusal(self) -> str:
        """Message for a lock that another process on this machine holds."""
        holder = read_holder(self.work)
        who = "a process that has not named itself yet" if holder is None else str(holder)
        if holder is not None and holder.pid == os.getpid():
            who += ", which is this very process: another Archive or Study has the store open"
        elif holder is not None and not is_alive(holder):
            who += ", which has ended, but a process that it started still has the file open"
        return (
            f"writing to {self.work.parent} needs its lock; it is held by {who}. "
            "Wait for it (or give a timeout), close the store there, or open it for reading: "
            "mode='r' needs no lock."
        )

    def _require_here(self) -> None:
        """Refuse a store whose last holder, on another host, has not signed off."""
        holder, me = read_holder(self.work), this_process()
        if holder is None or holder.host == me.host or (me.boot and holder.boot == me.boot):
            return
        raise LockError(
            f"writing to {self.work.parent} needs its lock; it is marked as held by {holder}, and "
            f"this is host {me.host}, from where nobody can see whether that process still runs. "
            f"If it has ended, remove {self.work / HOLDER} and start again. Safe between hosts: "
            "reading, a store for each host, one host writing after the other has finished. "
            "Not safe: two hosts writing to one store at a time."
        )
