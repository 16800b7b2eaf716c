"""Kill -9, Ctrl-C, a full disk and a second writer, on real processes."""

import os
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.compare import equal_stores
from tokensense.errors import LockError, StoreError
from tokensense.store import Archive
from tokensense.store.lock import read_holder
from tokensense.store.tree import WORK


def test_two_runs_in_processes_of_their_own_are_equal(processes, uninterrupted, tmp_path):
    run = processes(tmp_path / "two.zarr")
    assert run.end() == 0
    assert equal_stores(tmp_path / "two.zarr", uninterrupted) == []


def test_the_comparison_sees_one_bit_one_attribute_and_one_file(uninterrupted, tmp_path):
    path = tmp_path / "two.zarr"
    driver.run(path)
    with Archive(path) as archive:
        shifts = archive.read("stats/shifts")
        archive.write_node("stats/shifts", shifts.assign_attrs(sign="none"))
        assert "/stats/shifts: attributes" in equal_stores(path, uninterrupted)
        values = shifts["mean"].values.copy()
        values[1] = np.nextafter(values[1], 2)
        archive.write_node("stats/shifts", shifts.assign(mean=("kind", values)))
    assert "/stats/shifts/mean: values" in equal_stores(path, uninterrupted)
    (path / "rollouts" / "stray").touch()
    assert "only in one: rollouts/stray" in equal_stores(path, uninterrupted)


def check_random_kills(processes, uninterrupted, tmp_path, *, duration, seeds):
    """For each seed: kill a run, kill the run that goes on, let a third one end, compare."""
    codes = []
    for seed in seeds:
        path = tmp_path / f"killed{seed}.zarr"
        moments = np.random.default_rng(seed).uniform(0.0, duration, 2)
        for moment in moments:
            run = processes(path, driver.SLOW)
            time.sleep(moment)
            with suppress(ProcessLookupError):
                os.kill(run.process.pid, signal.SIGKILL)
            codes.append(run.end())
        driver.run(path)
        assert equal_stores(path, uninterrupted) == [], f"seed {seed}, exit codes {codes}"
        assert not list(path.rglob("*.part"))
    # The kills did hit runs that were under way.
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) >= len(codes) / 2, codes


def test_kill_at_random_moments(processes, uninterrupted, tmp_path, duration):
    check_random_kills(processes, uninterrupted, tmp_path, duration=duration, seeds=range(2))


# Each seed kills twice: 100 kills.
@pytest.mark.slow
def test_kill_at_many_random_moments(processes, uninterrupted, tmp_path, duration):
    check_random_kills(processes, uninterrupted, tmp_path, duration=duration, seeds=range(2, 52))


@pytest.mark.parametrize(
    ("fault", "occurrence"),
    [
        ("block:data", 2),
        ("block:piece", 3),
        ("block:fsync", 2),
        ("block:rename", 2),
        ("assemble:shard", 2),
        ("publish:placed", 2),
    ],
)
def test_kill_at_a_fault_point(processes, uninterrupted, tmp_path, fault, occurrence):
    path = tmp_path / "killed.zarr"
    run = processes(path, fault=fault, occurrence=occurrence)
    assert run.end() == -signal.SIGKILL
    strays = list(path.rglob("*.part"))
    if fault.startswith("block:"):
        assert len(list((path / WORK / "probes" / "opposed").glob("*.npz"))) == 1
        (stray,) = strays
        size = stray.stat().st_size
        whole = sum(
            array.nbytes
            for array in driver.block(driver.rollouts(number=12, mean=5500), 4, 8).values()
        )
        # Before data; in the midst of it, which leaves a partial block; before fsync and rename.
        if fault == "block:data":
            assert size == 0
        elif fault == "block:piece":
            assert 0 < size < whole
        else:
            assert size > whole
    if fault == "assemble:shard":
        (building,) = (path / WORK / "building").iterdir()
        assert (building / "logp").is_dir()
        assert not (path / "probes" / "opposed").exists()
    # Whatever the moment, plain xarray opens what is there, and sees no probe or a whole one.
    with xr.open_datatree(path) as tree:
        if "probes" in tree.children:
            whole = xr.open_dataset(
                uninterrupted, engine="zarr", group="probes/opposed", consolidated=True
            )
            xr.testing.assert_equal(tree["probes/opposed"].to_dataset(), whole)
    driver.run(path)
    assert equal_stores(path, uninterrupted) == []
    assert not list(path.rglob("*.part"))


def test_a_dead_holder_does_not_block(processes, tmp_path):
    path = tmp_path / "killed.zarr"
    run = processes(path, fault="block:rename")
    assert run.end() == -signal.SIGKILL
    assert read_holder(path / WORK).pid == run.process.pid
    with Archive(path) as archive:
        archive.write_node("stats/x", xr.Dataset({"a": 1}))
    assert read_holder(path / WORK) is None


def test_ctrl_c_leaves_a_store_that_goes_on(processes, uninterrupted, tmp_path):
    path = tmp_path / "stopped.zarr"
    # Two seconds between the first block and the last: on a busy machine the signal comes late.
    run = processes(path, {"seconds": 1.0})
    wait_for(lambda: list((path / WORK / "probes" / "opposed").glob("*.npz")))
    # While the next block is computed. At the end of a write it may hit a `__del__` (of a zip
    # file), in which Python drops it; people press Ctrl-C again.
    time.sleep(0.3)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 1
    assert not list(path.rglob("*.part"))
    assert read_holder(path / WORK) is None
    with Archive(path) as archive:
        assert 1 <= len(archive.done_blocks("opposed")) < 3
    driver.run(path)
    assert equal_stores(path, uninterrupted) == []


def wait_for(condition, *, seconds=20):
    """Poll until `condition()` is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_second_writer_is_refused_or_waits(processes, uninterrupted, tmp_path):
    path = tmp_path / "shared.zarr"
    run = processes(path, {"seconds": 0.25, "timeout": 30.0})
    wait_for((path / WORK / "probes" / "opposed" / "plan.json").exists)
    host = os.uname().nodename
    with (
        Archive(path, timeout=0.0) as second,
        pytest.raises(LockError, match=rf"held by process {run.process.pid} on host {host} \("),
    ):
        second.start_probe("opposed", driver.header(), driver.ranges(12, 4))
    second_run = processes(path, {"timeout": 30.0})
    assert run.end() == 0
    assert second_run.end() == 0
    assert equal_stores(path, uninterrupted) == []


def test_two_starts_at_once_give_one_store(processes, uninterrupted, tmp_path):
    path = tmp_path / "shared.zarr"
    runs = [processes(path, driver.SLOW) for _ in range(2)]
    codes = [run.end() for run in runs]
    # The one refused ends with an exception; if both got through, one came after the other.
    assert 0 in codes
    assert set(codes) <= {0, 1}
    assert equal_stores(path, uninterrupted) == []


@pytest.mark.parametrize(("megabytes", "what"), [(2, "block"), (6, "assembly of probe")])
def test_a_full_disk_loses_nothing_that_was_done(small_disk, uninterrupted, megabytes, what):
    disk = small_disk(f"size={megabytes}m")
    path = disk / "full.zarr"
    with pytest.raises(StoreError, match=rf"{what}.* needs a writable folder with room.*No space"):
        driver.run(path)
    assert not list(path.rglob("*.part"))
    with Archive(path) as archive:
        done = archive.done_blocks("opposed")
        assert len(done) == (1 if what == "block" else 3)
        xr.testing.assert_identical(
            archive.rollouts().drop_attrs(deep=False),
            Archive(uninterrupted, mode="r").rollouts().drop_attrs(deep=False),
        )
    small_disk("remount", "size=64m")
    driver.run(path)
    assert equal_stores(path, uninterrupted) == []


def test_a_read_only_disk_can_be_read_and_says_why_not_more(small_disk):
    path = small_disk("size=64m") / "fixed.zarr"
    driver.run(path)
    small_disk("remount", "ro")
    for mode in ("a", "r"):
        with Archive(path, mode=mode) as archive:
            assert archive.nodes() == ["/rollouts", "/probes/opposed", "/stats/shifts"]
    with (
        Archive(path) as archive,
        pytest.raises(StoreError, match=r"writing /stats/x needs a writable folder.*[Rr]ead-only"),
    ):
        archive.write_node("stats/x", xr.Dataset({"a": 1}))
