import math
from dataclasses import replace

import numpy as np
import pytest

from tokensense.trainer.batches import PROBLEMS, SAMPLES, collect, step_seed


def fixed(task, rewards):
    """The task, with rewards taken from a list, one a rollout."""
    left = list(rewards)

    def grade(traces, problems, encoder):
        del problems, encoder
        return [replace(trace, reward=left.pop(0)) for trace in traces]

    return task._replace(grade=grade)


def test_groups_lie_together_and_advantages_are_of_each_group(policy, task, config):
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    batch = collect(policy, fixed(task, rewards), replace(config, advantage="group_mean"), step=0)
    assert batch.advantage.tolist() == [0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5]
    assert [t.problem for t in batch.traces] == [p.name for p in batch.problems for _ in range(4)]
    assert batch.mean_reward == 3 / 8
    assert batch.branches[0].context == tuple(policy.render(batch.problems[0].question))
    assert batch.branches[5].response == batch.traces[5].ids


def test_undecided_rewards_are_left_out_and_counted(policy, task, config):
    rewards = [1.0, math.nan, 0.0, 0.0, *[math.nan] * 4]
    batch = collect(policy, fixed(task, rewards), replace(config, advantage="group_mean"), step=0)
    assert batch.advantage.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert (batch.drawn, batch.undecided, len(batch.problems)) == (8, 5, 1)
    assert batch.mean_reward == pytest.approx(1 / 3)


def test_dynamic_sampling_takes_the_first_groups_that_differ(policy, task, config):
    same, differ = [1.0] * 4, [1.0, 0.0, 0.0, 0.0]
    rounds = [*same, *differ, *same, *same, *differ, *differ]
    config = replace(config, extra_rounds=3)
    batch = collect(policy, fixed(task, rounds), config, step=0)
    assert (batch.drawn, batch.uniform_groups, len(batch.problems)) == (24, 3, 2)
    assert [name.name.rpartition("@")[2] for name in batch.problems] == ["0.0", "0.2"]
    assert np.isfinite(batch.advantage).all()


def test_a_problem_that_comes_twice_in_a_step_is_sampled_once(policy, task, config):
    few = task.draw(2, 0)
    again = task._replace(draw=lambda count, seed: few[:count])
    config = replace(config, extra_rounds=2)
    batch = collect(policy, fixed(again, [0.0] * 8), config, step=0)
    assert (batch.drawn, batch.uniform_groups) == (8, 2)


def test_rounds_may_run_out(policy, task, config):
    config = replace(config, extra_rounds=1)
    batch = collect(policy, fixed(task, [0.0] * 16), config, step=0)
    assert batch.traces == batch.problems == batch.branches == []
    assert (batch.drawn, batch.uniform_groups, batch.mean_reward) == (16, 4, 0.0)
    assert batch.advantage.size == batch.length.size == 0


def test_a_step_is_what_its_number_says(policy, task, config):
    once, again, other = (collect(policy, task, config, step=n) for n in (3, 3, 4))
    assert once.branches == again.branches
    assert once.branches != other.branches


def test_seeds_of_different_uses_steps_and_rounds_differ(config):
    seeds = [
        step_seed(each, use, step, number)
        for each in (config, replace(config, seed=1))
        for use in (PROBLEMS, SAMPLES)
        for step in range(3)
        for number in range(2)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_overlong_shaping_makes_equal_rewards_differ_by_length(policy, task, config):
    config = replace(config, advantage="group_mean", max_new_tokens=18, overlong=18)
    batch = collect(policy, fixed(task, [1.0] * 8), config, step=0)
    lost = batch.length / 18
    group = np.repeat(lost.reshape(2, 4).mean(axis=1), 4)
    assert batch.advantage.tolist() == pytest.approx((group - lost).tolist())
    assert batch.uniform_groups == 2
