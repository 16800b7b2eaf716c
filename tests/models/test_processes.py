"""Who is who among the processes of a run, and who notices that another one is gone."""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.zoo import tiny_policy
from tokensense.errors import ProcessError
from tokensense.models.plan import Branch
from tokensense.models.processes import ALONE, own_device, together
from tokensense.models.sampler import sample
from tokensense.models.scorer import score

ROOT = Path(__file__).parents[2]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment():
    """The environment without what a launcher would have put there."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHERS and not name.startswith("ACCELERATE_")
    }


def launched(launcher, words):
    """A command of tokensense under a launcher, when it has ended."""
    return subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "tokensense", *map(str, words)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


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


def test_a_sum_is_over_all_and_the_same_bytes_in_each(tmp_path):
    parts = torch.randn(3, 1001, generator=torch.Generator().manual_seed(0))

    def work():
        rank = int(os.environ["RANK"])
        with together() as processes:
            held = parts[rank].clone()
            np.save(tmp_path / f"{rank}.npy", processes.summed(held).numpy())
            assert torch.equal(held, parts[rank])
            assert processes.summed(torch.tensor(rank, dtype=torch.int64)).item() == 3
            # What one of them has and the others do not is that to the bit.
            own = torch.where(torch.arange(1001) % 3 == rank, held, torch.zeros(()))
            assert torch.equal(processes.summed(own)[rank::3], held[rank::3])

    assert fork(work, number=3) == [0, 0, 0]
    found = [np.load(tmp_path / f"{rank}.npy") for rank in range(3)]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    np.testing.assert_allclose(found[0], parts.sum(0).numpy(), atol=1e-6)
    assert ALONE.summed(parts) is parts


def test_shares_are_put_together():
    policy = tiny_policy("llama")
    draw = random.Random(0)
    prompts = [tuple(draw.choices(range(250), k=draw.randint(1, 9))) for _ in range(7)]
    settings = {"max_new_tokens": 12, "ends": {3}, "seed": 5}
    drawn = sample(policy, prompts, **settings)
    branches = [Branch(p, own.ids) for p, own in zip(prompts, drawn, strict=True)]
    scores = score(policy, branches, tokens_per_row=16)

    def work():
        with together() as processes:
            found = sample(policy, prompts, processes=processes, **settings)
            assert [(own.ids, own.finish) for own in found] == [
                (own.ids, own.finish) for own in drawn
            ]
            for own, whole in zip(found, drawn, strict=True):
                assert own.logps == pytest.approx(whole.logps, abs=1e-4)
            # Streams are those of one process: so are the bytes.
            shared = score(policy, branches, tokens_per_row=16, processes=processes)
            for own, whole in zip(shared, scores, strict=True):
                assert all(map(np.array_equal, own, whole))

    assert fork(work, number=2) == [0, 0]
    assert fork(work, number=9) == [0] * 9  # more than there are prompts


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
