"""Probes scored by several processes: the bytes of one, whoever comes, ends early or dies."""

import json
import os
import signal
import time

import pytest
from accelerate import debug_launcher
from torch.multiprocessing.spawn import ProcessException

import tokensense as ts
from tests.builders import imported
from tests.models.test_processes import fork, launched
from tests.probes.tiny import tiny_policy
from tests.store.compare import equal_stores
from tokensense.errors import ProcessError
from tokensense.models.processes import together
from tokensense.probes import CATALOGUE
from tokensense.probes.rescore import run_probes
from tokensense.rollouts.trajectory import assemble
from tokensense.store.archive import Archive
from tokensense.store.lock import read_holder
from tokensense.store.tree import WORK

PROBES = ("base", "opposed")
TOKENS = 150  # a block: 2 for the base, 6 for the other


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def stored(path, policy, *, problems=2):
    with Archive(path) as archive:
        archive.write_rollouts(assemble(imported(problems), policy))
    return path


def score(path, policy, *, on_event=None, **settings):
    """What each process does; gives what `run_probes` gives."""
    chosen = {name: CATALOGUE[name](policy, frames=2, families=2) for name in PROBES[1:]}
    settings = {"tokens_per_block": TOKENS, "progress": False, **settings}
    with together() as processes:
        mode = "a" if processes.is_first else "blocks"
        event = (lambda name: on_event(processes.rank, name)) if on_event else (lambda _: None)
        with Archive(path, mode=mode, on_event=event) as archive:
            return run_probes(archive, policy, chosen, processes=processes, **settings)


@pytest.fixture(scope="module")
def alone(policy, tmp_path_factory):
    """A store that one process scored."""
    path = stored(tmp_path_factory.mktemp("alone") / "s.zarr", policy)
    score(path, policy)
    return path


def blocks_of(path, probe):
    return sorted((path / WORK / "probes" / probe).glob("*.npz"))


def test_a_store_by_several_processes_is_that_of_one(policy, alone, tmp_path, capfd):
    path = stored(tmp_path / "s.zarr", policy)

    def work():
        wrote = []
        done = score(path, policy, on_event=lambda *event: wrote.append(event), progress=True)
        assert done["processes"] == 3
        (rank,) = {rank for rank, name in wrote if name == "block:done"}  # each had its share
        assert rank == 0 or {name.partition(":")[0] for _, name in wrote} == {"block"}
        assert "/probes/opposed" in Archive(path, mode="r").nodes()  # finished for all of them

    debug_launcher(work, num_processes=3)
    assert equal_stores(path, alone) == []
    assert read_holder(path / WORK) is None
    # One bar, and it counts what all have scored.
    shown = capfd.readouterr().err
    total = sum(Archive(path, mode="r").read(f"/probes/{name}").logp.size for name in PROBES)
    assert shown.count("\n") == 1
    assert f"100%|██████████| {total}/{total}" in shown.rpartition("\r")[2]


def test_more_processes_than_blocks(policy, tmp_path):
    paths = [stored(tmp_path / name, policy, problems=1) for name in ("one.zarr", "four.zarr")]
    score(paths[0], policy, tokens_per_block=10**6)
    debug_launcher(lambda: score(paths[1], policy, tokens_per_block=10**6), num_processes=4)
    assert equal_stores(*paths) == []


def test_a_killed_process_costs_its_block_and_the_next_run_goes_on(policy, alone, tmp_path):
    path = stored(tmp_path / "s.zarr", policy)

    def die(rank, name):
        if rank == 1 and name == "block:rename" and len(blocks_of(path, "opposed")) >= 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ProcessException, match="SIGKILL"):
        debug_launcher(lambda: score(path, policy, on_event=die), num_processes=2)
    kept = {block.name for name in PROBES for block in blocks_of(path, name)}
    assert len(kept) >= 2
    written = []
    score(path, policy, on_event=lambda _, name: written.append(name))
    all_blocks = sum(
        len(Archive(alone, mode="r").read(f"/probes/{name}").attrs["block_stops"])
        for name in PROBES
    )
    assert written.count("block:done") == all_blocks - len(kept)
    assert equal_stores(path, alone) == []
    assert not list(path.rglob("*.part"))


@pytest.mark.parametrize("fault", ["publish:ready", "publish:placed"])
def test_several_go_on_where_the_first_was_killed_at_assembly(policy, alone, tmp_path, fault):
    path = stored(tmp_path / "s.zarr", policy)

    def die(rank, name):
        if name == fault:
            os.kill(os.getpid(), signal.SIGKILL)

    assert -signal.SIGKILL in fork(lambda: score(path, policy, on_event=die), number=2)
    debug_launcher(lambda: score(path, policy), num_processes=2)
    assert equal_stores(path, alone) == []


@pytest.mark.parametrize("dead", [0, 1])
def test_the_others_write_their_blocks_and_end_when_one_has_died(policy, alone, tmp_path, dead):
    path = stored(tmp_path / "s.zarr", policy)

    def die(rank, name):
        if rank == dead and name == "block:begin":
            os.kill(os.getpid(), signal.SIGKILL)

    def work():
        with pytest.raises(ProcessError, match=r"all of them to its end.*run the same com"):
            score(path, policy, on_event=die)

    # No launcher is there to end the other one.
    began = time.monotonic()
    codes = fork(work, number=2)
    assert codes[dead] == -signal.SIGKILL
    assert codes[1 - dead] == 0
    assert time.monotonic() - began < 60
    assert blocks_of(path, "opposed")
    assert Archive(path, mode="r").nodes() == ["/rollouts"]
    debug_launcher(lambda: score(path, policy), num_processes=2)
    assert equal_stores(path, alone) == []


def test_a_refusal_of_the_first_ends_the_others(policy, tmp_path):
    path = stored(tmp_path / "s.zarr", policy)

    def work():
        rank = int(os.environ["RANK"])
        with pytest.raises(
            Exception, match="all of them to its end" if rank else "temperature is 1.0"
        ):
            score(path, policy, temperature=0.5)
        time.sleep(1)  # still there, as in a notebook

    score(path, policy)
    assert fork(work, number=2) == [0, 0]


def test_a_process_with_other_settings_is_refused(policy, tmp_path):
    path = stored(tmp_path / "s.zarr", policy)

    def work():
        rank = int(os.environ["RANK"])
        message = "tokens_per_row is 512 in the store, 64 now" if rank else "all of them to its end"
        with pytest.raises(Exception, match=message):
            score(path, policy, tokens_per_row=64 if rank else 512)

    assert fork(work, number=2) == [0, 0]
    assert Archive(path, mode="r").nodes() == ["/rollouts"]


def test_a_study_gives_every_process_the_same_floor(policy, tmp_path):
    path, floors = stored(tmp_path / "s.zarr", policy), tmp_path / "floors"
    floors.mkdir()

    def work():
        found = ts.Study(path).probe(policy, ["opposed"], frames=2, progress=False)
        (floors / str(os.getpid())).write_text(json.dumps(found["numerical_floor"]))

    debug_launcher(work, num_processes=2)
    one, two = [json.loads(file.read_text()) for file in floors.iterdir()]
    assert one == two
    assert one["tokens"] > 0
    assert "/stats/numerical_floor" in Archive(path, mode="r").nodes()


# Real launchers


@pytest.fixture(scope="module")
def saved(tmp_path_factory, policy):
    folder = tmp_path_factory.mktemp("saved") / "policy"
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def launch(launcher, path, saved):
    words = ["probe", path, "--model", saved, "--probe", "opposed", "--frames", "2", "--json"]
    return launched(launcher, words)


ACCELERATE = ("accelerate.commands.launch", "--mixed_precision", "no", "--dynamo_backend", "no")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        (*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
         "--main_process_port", "0"),
    ],
    ids=["torchrun", "accelerate"],
)  # fmt: skip
def test_a_launcher_of_two_gives_the_store_of_one(saved, tmp_path, launcher):
    policy = ts.load_policy(saved)
    paths = [stored(tmp_path / name, policy) for name in ("one.zarr", "two.zarr")]
    ts.Study(paths[0]).probe(policy, ["opposed"], frames=2, progress=False)
    ran = launch(launcher, paths[1], saved)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)  # one process speaks
    assert found["processes"] == 2
    assert equal_stores(*paths) == []


@pytest.mark.slow
def test_the_launcher_that_starts_one_process_of_two_is_refused(saved, policy, tmp_path):
    path = stored(tmp_path / "s.zarr", policy)
    ran = launch((*ACCELERATE, "--cpu", "--num_processes", "2"), path, saved)
    assert ran.returncode != 0
    assert "asked for more than one process, and started one" in ran.stderr
    assert Archive(path, mode="r").nodes() == ["/rollouts"]
    ran = launch((*ACCELERATE, "--cpu", "--num_processes", "1"), path, saved)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["processes"] == 1
