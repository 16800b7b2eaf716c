"""A run by several processes: rollouts of one, weights of one up to rounding, none left hanging."""

import json
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.test_processes import fork, launched
from tests.trainer.test_loop import Collector, lines, same, untimed, weights
from tokensense.errors import ProcessError
from tokensense.models.processes import ALONE, together
from tokensense.trainer import parallel, run
from tokensense.trainer.config import OPSD, Objective
from tokensense.trainer.loop import train
from tokensense.trainer.parallel import joined, require_same_run


@pytest.fixture(scope="module")
def config(config):
    """Updates in several passes, so that there is something to share out."""
    return replace(config, steps=3, problems=4, tokens_per_row=128, learning_rate=3e-4)


@pytest.fixture(scope="module")
def several(tmp_path_factory, policy, task):
    """several(config, number, ...) -> what each process saw of one run."""

    def made(config, number, **settings):
        folder = tmp_path_factory.mktemp("several")
        asked = (settings.pop("policy", policy), settings.pop("task", task))

        def work():
            torch.save(seen_in(*asked, config, **settings), folder / os.environ["RANK"])

        assert fork(work, number=number) == [0] * number
        return [torch.load(folder / str(r), weights_only=False) for r in range(number)]

    return made


def seen_in(policy, task, config, **settings):
    sink = Collector()
    result = train(policy, task, config, sinks=[sink], progress=False, **settings)
    return {
        "weights": weights(result.policy),
        "records": [r for r in untimed(result.records) if r.pop("kind") != "finding"],
        "ids": [[trace.ids for trace in step.traces] for step in sink.steps],
        "logps": [p for step in sink.steps for trace in step.traces for p in trace.logps],
        "credit": [step.credit for step in sink.steps],
        "heard": len(sink.records),
    }


def assert_close(found, truth):
    """Weights and numbers are those of one process, up to the order of sums."""
    assert found["weights"].keys() == truth["weights"].keys()
    for name, value in truth["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=1e-6)
    # AdamW would not notice a gradient that is twice as long.
    for mine, its in zip(found["records"], truth["records"], strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("bucket", [1, 6, 100])
def test_gradients_and_sums_are_those_of_all(bucket, monkeypatch):
    monkeypatch.setattr(parallel, "BUCKET", bucket)

    def parameters(rank, dtype):
        made = [torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in (3, (1, 3), 4)]
        made[0].grad = torch.tensor([1.0, 2.0, 3.0], dtype=dtype) * (rank + 1)
        if rank == 1:
            made[1].grad = torch.tensor([[0.5, 0.0, -1.0]], dtype=dtype)
        return made

    def work():
        with together() as processes:
            for dtype in (torch.float32, torch.bfloat16):
                made = parameters(processes.rank, dtype)
                sums = joined({"a": float(processes.rank), "b": 0.5}, made, processes)
                assert sums == {"a": 3.0, "b": 1.5}
                assert made[0].grad.tolist() == [6.0, 12.0, 18.0]
                assert made[1].grad.tolist() == [[0.5, 0.0, -1.0]]
                assert made[1].grad.dtype == dtype
                assert made[2].grad is None  # nowhere: the optimizer passes over it

    assert fork(work, number=3) == [0, 0, 0]
    made = parameters(1, torch.float32)
    assert joined({"a": 1.0}, made, ALONE) == {"a": 1.0}
    assert made[0].grad.tolist() == [2.0, 4.0, 6.0]


def test_a_run_of_two_is_that_of_one(policy, task, config, several):
    truth = seen_in(policy, task, config)
    first, second = several(config, 2)
    assert first["ids"] == truth["ids"]
    assert all(map(np.array_equal, first["credit"], truth["credit"]))
    assert first["logps"] == pytest.approx(truth["logps"], abs=1e-4)
    assert_close(first, truth)
    assert not same(first["weights"], weights(policy))
    assert same(first["weights"], second["weights"])
    # Both judge by all the problems; the first alone speaks.
    assert first["records"] == second["records"]
    assert (first["heard"], second["heard"], second["ids"]) == (truth["heard"], 0, [])
    again, _ = several(config, 2)
    assert same(again["weights"], first["weights"])


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "cscr"},
        {"epochs": 2, "updates": 2, "objective": Objective(kl="k3", kl_coefficient=0.5)},
    ],
    ids=["evidence", "stale ratios and a reference"],
)
def test_what_is_measured_is_that_of_one(policy, task, config, several, fields):
    config = replace(config, steps=1, evaluate_every=0, **fields)
    truth = seen_in(policy, task, config)
    first, second = several(config, 2)
    assert all(map(np.array_equal, first["credit"], truth["credit"]))
    assert_close(first, truth)
    assert same(first["weights"], second["weights"])


def test_a_teacher_is_read_in_shares(reader, english, config, several):
    config = replace(config, steps=1, evaluate_every=0, rule="opsd", distillation=OPSD)
    # Each process feeds other rollouts in the second half than it has read the teacher's states of.
    config = replace(config, updates=2)
    first, _ = several(config, 2, policy=reader, task=english)
    assert first["records"][0]["updates"] == 2
    assert_close(first, seen_in(reader, english, config))


def test_there_may_be_fewer_rollouts_than_processes(policy, task, config, several):
    config = replace(config, problems=1, group=2, evaluate_every=0)
    found = several(config, 4)
    truth = seen_in(policy, task, config)
    assert found[0]["ids"] == truth["ids"]
    assert_close(found[0], truth)
    assert all(same(found[0]["weights"], other["weights"]) for other in found[1:])


def test_the_first_alone_shows_and_keeps_and_all_wait_for_it(
    policy, task, config, tmp_path, monkeypatch
):
    config, save = replace(config, steps=1, evaluate_every=0), run.save

    def slowly(*args, **settings):
        time.sleep(0.3)
        return save(*args, **settings)

    def work():
        def watch(step, _):
            (tmp_path / f"seen-{os.environ['RANK']}-{step}").touch()

        train(policy, task, config, out=tmp_path, watch=watch, progress=False)
        assert (tmp_path / "step-000001").exists()

    monkeypatch.setattr(run, "save", slowly)
    assert fork(work, number=2) == [0, 0]
    assert {path.name for path in tmp_path.glob("seen-*")} == {"seen-0-0", "seen-0-1"}


def test_an_interrupt_of_any_ends_all_in_order(policy, task, config, several, tmp_path):
    whole, _ = several(config, 2, out=tmp_path / "whole")
    out = tmp_path / "cut"

    def draw(count, seed):  # in the second step, in the second process alone
        if os.environ["RANK"] == "1" and (out / "second").exists():
            os.kill(os.getpid(), signal.SIGINT)
        return task.draw(count, seed)

    def work():
        with pytest.raises(KeyboardInterrupt):
            train(
                policy, task._replace(draw=draw), config, out=out, progress=False,
                watch=lambda step, _: (out / "second").touch() if step == 1 else None,
            )  # fmt: skip

    assert fork(work, number=2) == [0, 0]
    assert [path.name for path in out.glob("step-*")] == ["step-000001"]
    rest, _ = several(config, 2, out=out)
    assert len(rest["ids"]) == 2
    assert same(rest["weights"], whole["weights"])
    assert lines(out) == lines(tmp_path / "whole")


@pytest.mark.parametrize("ended", [0, 1])
@pytest.mark.parametrize("how", ["failed", "killed"])
def test_all_end_when_one_has(policy, task, config, ended, how, tmp_path):
    drawn = []

    def draw(count, seed):
        drawn.append(seed)
        if os.environ["RANK"] == str(ended) and len(drawn) == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("mine")
        return task.draw(count, seed)

    def work():
        own = how == "failed" and os.environ["RANK"] == str(ended)
        kind, message = (ValueError, "mine") if own else (ProcessError, "all of them to its end")
        with pytest.raises(kind, match=message):
            train(policy, task._replace(draw=draw), config, out=tmp_path, progress=False)

    began = time.monotonic()
    codes = fork(work, number=2)
    assert codes[1 - ended] == 0
    assert codes[ended] == (0 if how == "failed" else -signal.SIGKILL)
    assert time.monotonic() - began < 30
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000002"]


def test_processes_that_are_told_different_things_are_refused(policy, task, config):
    def work():
        own = replace(config, seed=int(os.environ["RANK"]))
        with pytest.raises(ProcessError, match="the same policy, task, settings and folder"):
            train(policy, task, own, progress=False)

    assert fork(work, number=2) == [0, 0]
    require_same_run(ALONE, "anything")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        ("accelerate.commands.launch", "--mixed_precision", "no", "--dynamo_backend", "no",
         "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"),
    ],
    ids=["torchrun", "accelerate"],
)  # fmt: skip
def test_a_launcher_of_two_keeps_one_run(tmp_path, launcher):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"problems": 2, "max_new_tokens": 32, "evaluate_every": 2}))
    words = ["train", tmp_path / "run", "--model", "tiny:tables", "--size", "lookups=3",
             "--held-out", 4, "--config", settings, "--steps", 2, "--json"]  # fmt: skip
    ran = launched(launcher, words)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["steps"] == 2  # one process speaks
    told = [record["kind"] for record in lines(tmp_path / "run")]
    done = [kind for kind in told if kind != "finding"]
    assert done == ["evaluation", "step", "step", "evaluation"]
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-000002"]
