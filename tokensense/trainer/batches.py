"""What one step learns from: problems drawn, responses sampled and graded, groups chosen.

Reads  a policy, a Task, a config, the number of the step.
Gives  Batch, collect, step_seed.
Sign   advantage positive: better than the other responses to the same problem.

A step's numbers follow from (seed, step) alone, so that nothing of a stream has to be kept.

Dynamic sampling draws round after round until there are enough groups whose responses differ in
reward; what was drawn beyond that is counted, since it was paid for. Groups differ by the plain
reward, not by the length that overlong shaping adds.

Source: DAPO, arXiv:2503.14476, section 3.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.rollouts.generate import responses
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Finish
from tokensense.tasks.problem import Problem
from tokensense.trainer.advantages import shaped_rewards, step_advantages
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.problems import Task

# What a seed is for; with (seed, step, round) it makes a stream of its own.
PROBLEMS, SAMPLES, ORDER = range(3)


@dataclass(frozen=True, eq=False)
class Batch:
    """The rollouts of one step, groups together.

    Attributes:
        problems: of the groups, in the order of the rollouts.
        traces: the rollouts, with ids and decided rewards.
        advantage: of each rollout.
        prompts: ids of each problem's base prompt, by its name.
        drawn: rollouts sampled for this step, those left out among them.
        mean_reward: of all rollouts drawn whose reward is decided; NaN for none.
        undecided: rollouts left out because their reward is not decided.
        uniform_groups: groups whose responses have equal rewards, left out or not.
    """

    problems: list[Problem]
    traces: list[Trace]
    advantage: Float64[np.ndarray, " rollout"]
    prompts: dict[str, tuple[int, ...]]
    drawn: int
    mean_reward: float
    undecided: int
    uniform_groups: int

    @cached_property
    def length(self) -> Int64[np.ndarray, " rollout"]:
        """Tokens of each rollout."""
        return np.array([len(trace.ids or ()) for trace in self.traces], dtype=np.int64)

    @cached_property
    def reward(self) -> Float64[np.ndarray, " rollout"]:
        """Plain reward of each rollout."""
        return np.array([trace.reward for trace in self.traces], dtype=np.float64)

    @cached_property
    def branches(self) -> list[Branch]:
        """Base prompt and response of each rollout."""
        return [Branch(self.prompts[trace.problem], trace.ids or ()) for trace in self.traces]

    @property
    def capped(self) -> float:
        """Share of the rollouts that reached the limit on tokens."""
        ended = [trace.finish == Finish.LENGTH for trace in self.traces]
        return float(np.mean(ended)) if ended else math.nan


def step_seed(config: TrainConfig, use: int, *numbers: int) -> int:
    """A seed for one use in one step: streams of different uses share nothing.

    Args:
        config: its seed.
        use: PROBLEMS, SAMPLES or ORDER.
        *numbers: step, and round within it.
    """
    sequence = np.random.SeedSequence(config.seed, spawn_key=(use, *numbers))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(2))


def collect(
    policy: Policy, task: Task, config: TrainConfig, *, step: int, processes: Processes = ALONE
) -> Batch:
    """Sample and grade the rollouts of a step.

    Args:
        policy: as it is now.
        task: draws and grades.
        config: sizes and form of the advantage.
        step: number of the step, from 0.
        processes: that sample a share each, and get all of it.

    Returns:
        The batch; with dynamic sampling it may hold fewer than `problems` groups, or none.

    Raises:
        PolicyError: a prompt does not fit; see `rollouts.generate`.
        SchemaError: there are too few problems.
    """
    kept: dict[Problem, list[Trace]] = {}
    seen: set[str] = set()
    rewards: list[float] = []
    drawn = alike = 0
    for number in range(1 + config.extra_rounds):
        problems = task.draw(config.problems, step_seed(config, PROBLEMS, step, number))
        # Names of their own, since a sink may lay the rollouts of all steps together.
        new = [
            replace(problem, name=f"{problem.name}@{step}.{number}")
            for problem in problems
            if problem.question not in seen
        ]
        seen |= {problem.question for problem in new}
        sampled = responses(
            policy,
            new,
            group=config.group,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            seed=step_seed(config, SAMPLES, step, number),
            processes=processes,
        )
        groups = _groups(task.grade(sampled, new, policy), config.group)
        for problem, traces in zip(new, groups, strict=True):
            decided = [trace for trace in traces if np.isfinite(trace.reward)]
            drawn += len(traces)
            rewards += [trace.reward for trace in decided]
            same = len({trace.reward for trace in decided}) < 2
            alike += same
            if decided and not (same and config.extra_rounds) and len(kept) < config.problems:
                kept[problem] = decided
        if len(kept) == config.problems:
            break
    traces = [trace for group in kept.values() for trace in group]
    return Batch(
        problems=list(kept),
        traces=traces,
        advantage=_advantage(kept, traces, config),
        prompts={problem.name: tuple(policy.render(problem.question)) for problem in kept},
        drawn=drawn,
        mean_reward=float(np.mean(rewards)) if rewards else math.nan,
        undecided=drawn - len(rewards),
        uniform_groups=alike,
    )


def _groups(traces: Sequence[Trace], size: int) -> list[list[Trace]]:
    """Responses to each problem."""
    return [list(traces[start : start + size]) for start in range(0, len(traces), size)]


def _advantage(
    kept: dict[Problem, list[Trace]], traces: Sequence[Trace], config: TrainConfig
) -> Float64[np.ndarray, " rollout"]:
    """Advantages of shaped rewards; a group left with one decided response gets 0."""
    sizes = [len(group) for group in kept.values()]
    group = np.repeat(np.arange(len(sizes)), sizes)
    reward = np.array([trace.reward for trace in traces], dtype=np.float64)
    length = np.array([len(trace.ids or ()) for trace in traces], dtype=np.int64)
    if not traces:
        return reward
    return step_advantages(shaped_rewards(reward, length, config), group, config)
