"""Planted tasks: problems are drawn, and every token of any response can be labelled.

Reads  a seed; or the question and the words of a response, one a token.
Gives  PlantedTask, Truth; `arithmetic` and `tables`, the two that there are.

A response is read word by word as it was sampled, well formed or not. A right answer in spite of a
wrong token is right by luck.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from tokensense.schema import NO_STEP, NO_TOKEN
from tokensense.tasks import arithmetic, arithmetic_labels, tables, tables_labels
from tokensense.tasks.problem import Problem

NO_WORD = -1  # no id of any vocabulary


class Truth(NamedTuple):
    """What is known about one response.

    Attributes:
        kinds: `schema.Kind` of each token.
        steps: step that holds each token, -1 for none.
        wrong_token: index of the first wrong token, -1 for none.
        right: the answer is right and the response ended.
    """

    kinds: tuple[int, ...]
    steps: tuple[int, ...]
    wrong_token: int
    right: bool

    @property
    def wrong_step(self) -> int:
        """Step of the first wrong token; -1 for none, or where that token is in no step."""
        return NO_STEP if self.wrong_token == NO_TOKEN else self.steps[self.wrong_token]


class PlantedTask(NamedTuple):
    """A task whose truth is known.

    Attributes:
        problems: problems(count, seed, **sizes): that many of distinct questions; the same seed
            gives the same ones.
        label: label(question, words): the truth about a response, one word a token, the end token
            with it. Raises InputError where the question is none of this task.
        end: the word that `label` takes for the end of a response.
    """

    problems: Callable[..., list[Problem]]
    label: Callable[[str, Sequence[str]], Truth]
    end: str


def arithmetic_task() -> PlantedTask:
    """Chains of sums and products; sizes are the fields of `arithmetic.Chains`."""
    return PlantedTask(_arithmetic_problems, _arithmetic_truth, arithmetic.END)


def tables_task(*, world: int = tables.WORLD_SEED) -> PlantedTask:
    """Chains of table look-ups; sizes are the fields of `tables.Regime`.

    Args:
        world: seed of the facts, which are those of the default regime whatever the sizes; left
            out, the world of the shipped policy.
    """
    problems, truth = partial(_tables_problems, world), partial(_tables_truth, world)
    return PlantedTask(problems, truth, tables.VOCABULARY[tables.END])


def _arithmetic_problems(count: int, seed: int, **sizes: object) -> list[Problem]:
    chains = arithmetic.Chains(**sizes)  # type: ignore[arg-type]  # checked there, by name
    return arithmetic.problems(np.random.default_rng(seed), count=count, chains=chains)


def _arithmetic_truth(question: str, words: Sequence[str]) -> Truth:
    found = arithmetic_labels.label(words, question)
    return Truth(
        tuple(found.kind.tolist()), tuple(found.step.tolist()), found.wrong_token, found.right
    )


def _tables_problems(world: int, count: int, seed: int, **sizes: object) -> list[Problem]:
    chains = tables.draw_chains(
        tables.Regime(**sizes),  # type: ignore[arg-type]  # checked there, by name
        count=count,
        generator=np.random.default_rng(seed),
        distinct=True,
    )
    return [tables.as_problem(chain, _facts(world)) for chain in chains]


def _tables_truth(world: int, question: str, words: Sequence[str]) -> Truth:
    ids = [tables.ID.get(word, NO_WORD) for word in words]
    found = tables_labels.label(tables.read_chain(question), ids, facts=_facts(world))
    return Truth(
        tuple(found.kind.tolist()),
        tuple(found.step.tolist()),
        found.first_wrong,
        bool(found.reward),
    )


@cache
def _facts(world: int) -> tables.Facts:
    return tables.plant_facts(tables.Regime(), np.random.default_rng(world))


PLANTED: dict[str, PlantedTask] = {
    "arithmetic": arithmetic_task(),
    "tables": tables_task(),
}
