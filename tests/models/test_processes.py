"""Who is who among the processes of a run, and who notices that another one is gone."""

import multiprocessing
import os
import signal
import socket
import time
from datetime import timedelta

import pytest

from tokensense.errors import ProcessError
from tokensense.models.processes import ALONE, own_device, together

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment():
    """The environment without what a launcher would have put there."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHERS and not name.startswith("ACCELERATE_")
    }


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in {*os.environ} - {*environment()}:
        monkeypatch.delenv(name)


def fork(body, *, number, seconds=60):
    """Run `body` in processes as a plain launcher starts them, which ends none; exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(rank):
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        body()

    context = multiprocessing.get_context("fork")
    started = [context.Process(target=start, args=(rank,)) for rank in range(number)]
    for process in started:
        process.start()
    end = time.monotonic() + seconds
    for process in started:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
        process.join()
    return codes


def test_one_process_is_the_first_and_waits_for_nobody():
    with together() as processes:
        assert processes == ALONE
        assert processes.is_first
        assert processes.from_first([True, False]) == [True, False]
        processes.wait(lambda: pytest.fail("nobody to wait for"))


def test_all_get_what_the_first_has_and_wait_for_the_last(tmp_path):
    def work():
        rank = int(os.environ["RANK"])
        for turn in ("once", "again"):
            with together() as processes:
                assert (processes.rank, processes.size) == (rank, 3)
                assert processes.from_first([rank == 0, rank > 0]) == [True, False]
                assert processes.from_first([]) == []
                calls = []
                if rank == 2:
                    time.sleep(0.5)
                    (tmp_path / turn).touch()
                processes.wait(lambda: calls.append(0))  # noqa: B023
                assert (tmp_path / turn).exists()
                assert calls or rank == 2

    assert fork(work, number=3) == [0, 0, 0]


def test_the_first_goes_first(tmp_path):
    def work():
        with together() as processes, processes.first_goes_first():
            if processes.is_first:
                time.sleep(0.3)
                (tmp_path / "made").touch()
            assert (tmp_path / "made").exists()

    assert fork(work, number=2) == [0, 0]


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_waiting_ends_when_another_has_ended(gone, how, tmp_path):
    noticed = tmp_path / "noticed"

    def end():
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("mine")

    def work():
        if os.environ["RANK"] == str(gone):
            # The group that is still held keeps its connections, as in a notebook.
            with pytest.raises(ValueError, match="mine"), together() as processes:
                end()
            until = time.monotonic() + 30
            while not noticed.exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert processes.group is not None
            return
        why = "Connection|socket|peer" if how == "killed" else f"number {gone} failed"
        with pytest.raises(ProcessError, match=why), together() as processes:
            processes.wait()
        noticed.touch()

    codes = fork(work, number=2)
    assert codes[1 - gone] == 0
    assert codes[gone] == (0 if how == "failed" else -signal.SIGKILL)


def test_processes_that_do_not_come_are_missed():
    def work():
        if os.environ["RANK"] == "0":
            with (
                pytest.raises(
                    ProcessError, match=r"run of 2 processes.*did not come within 0:00:01"
                ),
                together(arrival=timedelta(seconds=1)),
            ):
                pass

    assert fork(work, number=2) == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "on one machine; of 16 there are 8 here"),
        (
            {"MASTER_PORT": "29500", "ACCELERATE_MIXED_PRECISION": "no"},
            "asked for more than one process, and started one.*--multi_gpu",
        ),
        ({"WORLD_SIZE": "2"}, "each with RANK.*unset WORLD_SIZE"),
    ],
)
def test_an_impossible_environment_is_refused(monkeypatch, changes, message):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessError, match=message), together():
        pass


def test_marks_of_a_launcher_that_was_asked_for_one_are_no_reason(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with together() as processes:
        assert processes == ALONE


def test_each_process_has_its_own_gpu(monkeypatch):
    assert own_device("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device("cuda") == "cuda:3"
    assert [own_device(device) for device in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
