import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted
from tokensense.errors import PolicyError, SchemaError, StoreError
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.trainer.config import Objective
from tokensense.trainer.loop import train
from tokensense.trainer.run import METRICS_FILE

TIMED = ("seconds", "seconds_sampling", "seconds_scoring", "seconds_updating")


def untimed(records):
    return [{n: v for n, v in record.items() if n not in TIMED} for record in records]


def weights(policy):
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def lines(folder):
    text = (folder / METRICS_FILE).read_text()
    return untimed(json.loads(line) for line in text.splitlines())


class Collector:
    """A sink that keeps what it gets; `at` is called with each step's rollouts."""

    def __init__(self, at=None):
        self.records, self.steps, self.at = [], [], at

    def record(self, record):
        self.records.append(record)

    def rollouts(self, rollouts):
        self.steps.append(rollouts)
        if self.at is not None:
            self.at(rollouts.step)


@pytest.fixture(scope="module")
def whole(policy, task, config, tmp_path_factory):
    """A run that nothing came between."""
    out = tmp_path_factory.mktemp("whole")
    return train(policy, task, config, out=out, progress=False), out


def test_a_run_learns_and_leaves_the_policy_it_began_from(policy, task, config, whole):
    result, _ = whole
    assert result.stopped == ""
    assert not same(weights(result.policy), weights(policy))
    assert result.policy.digest != policy.digest
    judged = [r["step"] for r in result.records if r["kind"] == "evaluation"]
    steps = [r["step"] for r in result.records if r["kind"] == "step"]
    assert judged == [0, 2, 4]
    assert steps == [1, 2, 3, 4]


def test_the_same_call_gives_the_same_bytes(policy, task, config, whole):
    again = train(policy, task, config, progress=False)
    assert same(weights(again.policy), weights(whole[0].policy))
    assert untimed(again.records) == untimed(whole[0].records)


def test_a_resumed_run_ends_in_the_same_bytes(policy, task, config, whole, tmp_path):
    first = train(policy, task, replace(config, steps=2), out=tmp_path, progress=False)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000002"]
    # What a killed run had written beyond its checkpoint.
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"kind": "step", "step": 3}\n')
    second = train(policy, task, config, out=tmp_path, progress=False)
    assert not same(weights(first.policy), weights(second.policy))
    assert same(weights(second.policy), weights(whole[0].policy))
    assert untimed(second.records) == untimed(whole[0].records)
    assert lines(tmp_path) == lines(whole[1])


def test_a_finished_run_is_read_and_not_done_again(policy, task, config, whole):
    result, out = whole
    sink = Collector()
    again = train(policy, task, config, out=out, sinks=[sink], progress=False)
    assert sink.records == sink.steps == []
    assert same(weights(again.policy), weights(result.policy))


def test_another_run_in_the_same_folder_is_refused(policy, task, config, whole):
    with pytest.raises(StoreError, match=r"these differ: seed: 0 -> 5\. Choose another folder"):
        train(policy, task, replace(config, seed=5), out=whole[1], progress=False)
    with pytest.raises(StoreError, match=r"these differ: policy: .* -> "):
        train(whole[0].policy, task, config, out=whole[1], progress=False)


@pytest.mark.parametrize("when", ["sampling", "updating"])
def test_an_interrupt_finishes_or_drops_the_step(
    policy, task, config, whole, tmp_path, monkeypatch, when
):
    def interrupt(step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    sink = Collector(interrupt if when == "updating" else None)
    asked = task
    if when == "sampling":
        calls = []

        def draw(count, seed):
            calls.append(seed)
            interrupt(len(calls) - 1)
            return task.draw(count, seed)

        asked = task._replace(draw=draw)
    with pytest.raises(KeyboardInterrupt):
        train(policy, asked, config, out=tmp_path, sinks=[sink], progress=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # An update that had begun is finished; a step that was still sampling is dropped.
    done = {"sampling": "step-000002", "updating": "step-000003"}[when]
    assert [path.name for path in tmp_path.glob("step-*")] == [done]
    result = train(policy, task, config, out=tmp_path, progress=False)
    assert same(weights(result.policy), weights(whole[0].policy))
    assert lines(tmp_path) == lines(whole[1])


def test_a_sink_gets_rollouts_that_the_store_can_take(policy, task, config):
    sink = Collector()
    train(policy, task, replace(config, steps=2), sinks=[sink], progress=False)
    assert [r["kind"] for r in sink.records] == ["evaluation", "step", "step", "evaluation"]
    assert [rollouts.step for rollouts in sink.steps] == [0, 1]
    problems = [problem for step in sink.steps for problem in step.problems]
    traces = [trace for step in sink.steps for trace in step.traces]
    node = assemble(Imported(problems, traces), policy)
    credit = np.concatenate([step.credit for step in sink.steps])
    assert node.sizes["rollout"] == 2 * config.problems * config.group
    assert node.sizes["token"] == credit.size
    assert np.isfinite(node["sampled_logp"].values).all()
    length = node["length"].values
    assert (
        credit.tolist()
        == np.repeat(np.concatenate([step.advantage for step in sink.steps]), length).tolist()
    )


@pytest.mark.parametrize("rule", ["cscr_shuffled", "cscr_placebo", "high_entropy", "ktae", "step"])
def test_rules_of_every_kind_train_on_live_evidence(policy, task, config, rule):
    sink = Collector()
    config = replace(config, steps=1, rule=rule, evaluate_every=0)
    result = train(policy, task, config, sinks=[sink], progress=False)
    (step,) = sink.steps
    assert result.records[0]["not_comparable"] == 0
    assert set(step.evidence) == CATALOGUE[rule].needs
    assert np.isfinite(step.credit).all()
    length = [len(trace.ids) for trace in step.traces]
    if CATALOGUE[rule].budget == "rollout":
        means = [w.mean() for w in np.split(step.weight, np.cumsum(length)[:-1])]
        assert means == pytest.approx([1.0] * len(means))


@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_a_kl_is_to_the_policy_that_the_run_began_from(policy, task, config, kl):
    config = replace(config, objective=Objective(kl=kl, kl_coefficient=0.5), evaluate_every=0)
    steps = train(policy, task, config, progress=False).records
    # At first there is no distance, up to how rows are laid out.
    assert abs(steps[0]["kl"]) < 1e-5
    assert abs(steps[-1]["kl"]) > 1e-4


def test_dynamic_sampling_counts_what_it_leaves_out(policy, task, config):
    config = replace(config, steps=3, extra_rounds=4, evaluate_every=0)
    steps = train(policy, task, config, progress=False).records
    for step in steps:
        assert step["rollouts"] == config.problems * config.group
        assert step["drawn"] >= step["rollouts"] + config.group * step["uniform_groups"]
    assert any(step["drawn"] > step["rollouts"] for step in steps)


def test_the_learning_rate_warms_up(policy, task, config):
    config = replace(config, steps=1, evaluate_every=0)
    start = weights(policy)
    plain = weights(train(policy, task, config, progress=False).policy)
    warm = weights(train(policy, task, replace(config, warmup=4), progress=False).policy)
    for name, value in start.items():
        torch.testing.assert_close(
            warm[name] - value, (plain[name] - value) / 4, rtol=1e-2, atol=1e-6
        )


def test_a_run_that_collapses_can_be_stopped(policy, task, config):
    # Five tokens are never enough: every response reaches the limit.
    config = replace(config, max_new_tokens=5, evaluate_every=0)
    result = train(policy, task, config, stop_on_collapse=True, progress=False)
    assert result.stopped == "collapse"
    assert [r["step"] for r in result.records if r["kind"] == "step"] == [1]
    (finding,) = [f for f in result.findings if f.collapse]
    assert (finding.sign, finding.step) == ("length", 1)
    on = train(policy, task, config, progress=False)
    assert on.stopped == ""
    assert [f.sign for f in on.findings if f.collapse] == ["length"]


def test_several_passes_compare_with_the_policy_that_sampled(policy, task, config):
    config = replace(config, steps=1, epochs=2, learning_rate=1e-2, evaluate_every=0)
    (step,) = train(policy, task, config, progress=False).records
    assert step["updates"] == 2
    assert abs(step["ratio"] - 1) > 1e-4


def test_a_run_with_checkpointing_ends_in_the_same_bytes(policy, task, config, whole, monkeypatch):
    config = replace(config, checkpointing=True)
    result = train(policy, task, config, progress=False)
    assert same(weights(result.policy), weights(whole[0].policy))
    monkeypatch.setattr(type(policy.model), "supports_gradient_checkpointing", False)
    with pytest.raises(PolicyError, match=r"Qwen3ForCausalLM is none\. Set `checkpointing`"):
        train(policy, task, config, progress=False)


def test_a_rule_of_ones_own_is_trained_with_and_not_kept(policy, task, config, whole, tmp_path):
    # CSCR at gamma 0 is uniform credit, so the run must be that of `uniform`.
    rule = adjusted(CATALOGUE["cscr"], gamma=0.0)
    result = train(policy, task, config, rule=rule, progress=False)
    assert same(weights(result.policy), weights(whole[0].policy))
    with pytest.raises(SchemaError, match=r"needs a rule of the catalogue; one's own .* with /"):
        train(policy, task, config, rule=rule, out=tmp_path, progress=False)


def test_the_policy_can_be_watched_before_the_first_step_and_after_each(
    policy, task, config, whole
):
    seen = {}
    result = train(
        policy,
        task,
        config,
        watch=lambda step, now: seen.setdefault(step, weights(now)),
        progress=False,
    )
    assert list(seen) == [0, 1, 2, 3, 4]
    assert same(seen[0], weights(policy))
    assert same(seen[4], weights(whole[0].policy))
    assert result.policy.digest == whole[0].policy.digest


def test_a_planted_task_trains_the_rule_that_needs_the_truth(policy, task, config):
    result = train(policy, task, replace(config, rule="oracle", steps=2), progress=False)
    assert any(record.get("updates") for record in result.records)
