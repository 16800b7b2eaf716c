"""Processes to kill, small disks, and stores to compare with."""

import multiprocessing
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.store import driver


class Run:
    """A driver in a process of its own; `begin` is when it started to work."""

    def __init__(self, context, path, options, **faults):
        self.connection, theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=driver.child, args=(str(path), theirs, options), kwargs=faults, daemon=True
        )
        self.process.start()
        theirs.close()
        assert self.connection.recv() == "ready"
        self.begin = time.monotonic()

    def end(self, seconds=60):
        """Exit code: 0 done, 1 an exception, -9 killed."""
        self.process.join(seconds)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        return code


@pytest.fixture(scope="session")
def processes():
    """Starts drivers, forked by a server that has imported xarray and zarr already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokensense.store.archive", "tests.store.driver"])
    return lambda path, options=None, **faults: Run(context, path, options or {}, **faults)


@pytest.fixture(scope="session")
def memory():
    """A folder in memory where there is one: fsync is slow, and a kill does not test it."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def tmp_path(memory):
    """A folder of its own in `memory`, for every test of the store."""
    return Path(tempfile.mkdtemp(dir=memory))


@pytest.fixture(scope="session")
def uninterrupted(memory):
    """A store that was made in one go."""
    path = memory / "uninterrupted.zarr"
    driver.run(path)
    return path


@pytest.fixture(scope="session")
def duration(processes, memory):
    """Seconds that a slow run takes."""
    run = processes(memory / "timed.zarr", driver.SLOW)
    assert run.end() == 0
    return time.monotonic() - run.begin


@pytest.fixture
def small_disk(tmp_path):
    """Makes a disk of a given size; `resize` changes size or makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as cause:
            pytest.skip(f"a small disk needs mount: {cause}")
        if done.returncode:
            pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)
