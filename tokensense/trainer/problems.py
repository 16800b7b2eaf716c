"""Where a run's problems come from, and who says which response is right.

Reads  a planted task, or problems with reference answers.
Gives  Task; `planted` and `listed` make one.
Sign   rewards are 1 right, 0 wrong, NaN undecided.

Problems are drawn by a seed alone, never by a position in a stream: step 17 of a run has the same
problems whether the run was interrupted before it or not, and runs of one seed share them. No
question of the held-out set is ever drawn.

Source: own work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool

from tokensense.checks import require_member
from tokensense.errors import SchemaError
from tokensense.models.policy import Policy
from tokensense.rollouts.grading import graded, labelled
from tokensense.rollouts.trajectory import Encoder, Trace
from tokensense.schema import Kind
from tokensense.tasks.extraction import final_answer
from tokensense.tasks.planted import PLANTED, PlantedTask
from tokensense.tasks.problem import Problem

# Of held-out sets, unless told otherwise; training draws by pairs of numbers, so never by this.
HELD_OUT_SEED = 2027
MOST_DRAWS = 100
# Of graded rollouts and their problems: one entry a token, rollouts back to back.
Measure: TypeAlias = Callable[[Policy, Sequence[Problem], Sequence[Trace]], np.ndarray]


class Task(NamedTuple):
    """What is trained on, and what it is judged on.

    Attributes:
        name: with its sizes, as checkpoints keep it.
        draw: draw(count, seed): that many problems of distinct questions, none held out. Raises
            SchemaError where there are too few.
        grade: grade(traces, problems, encoder): the traces with rewards, and labels where known.
        answer: the final answer in a response's text, None where there is none; for the majority.
        held_out: problems of distinct questions.
        evidence: what rules read that this task can say by itself, by name: `planted` of a planted
            task. It is taken before what the trainer would measure.
    """

    name: str
    draw: Callable[[int, int], list[Problem]]
    grade: Callable[[Sequence[Trace], Sequence[Problem], Encoder], list[Trace]]
    answer: Callable[[str], str | None]
    held_out: tuple[Problem, ...]
    evidence: Mapping[str, Measure] = MappingProxyType({})


def planted(
    name: str = "tables",
    *,
    held_out: int = 2048,
    held_out_seed: int = HELD_OUT_SEED,
    task: PlantedTask | None = None,
    **sizes: object,
) -> Task:
    """A task whose problems are drawn and whose tokens are labelled.

    Args:
        name: `tables` or `arithmetic`.
        held_out: problems to judge by.
        held_out_seed: of these.
        task: another of this name, such as one of another world; None: the shipped one.
        **sizes: of the task, such as `lookups` and `filler_mean` for `tables`.

    Raises:
        SchemaError: a size is unknown or out of range, or there are too few questions.
    """
    require_member("task", name, PLANTED)
    chosen = PLANTED[name] if task is None else task
    try:
        kept = tuple(chosen.problems(held_out, held_out_seed, **sizes))
    except TypeError as cause:
        raise SchemaError(
            f"{name} needs sizes that it has; {sizes} came: {cause}. Take names from "
            "`tasks.tables.Regime` or `tasks.arithmetic.Chains`."
        ) from cause
    questions = frozenset(problem.question for problem in kept)

    def draw(count: int, seed: int) -> list[Problem]:
        return _others(chosen, questions, count, seed=seed, sizes=sizes)

    def grade(
        traces: Sequence[Trace], problems: Sequence[Problem], encoder: Encoder
    ) -> list[Trace]:
        return labelled(traces, problems, task=chosen, encoder=encoder)

    said = ",".join(f"{key}={sizes[key]}" for key in sorted(sizes))
    named = f"{name}({said}) held_out={held_out}@{held_out_seed}"
    return Task(named, draw, grade, _last_word, kept, MappingProxyType({"planted": decisive}))


def listed(problems: Sequence[Problem], *, held_out: Sequence[Problem] = (), name: str) -> Task:
    """Published problems with reference answers; each draw takes some at random, none twice.

    Args:
        problems: to train on; those whose question is held out are left out.
        held_out: to judge by.
        name: of the set.

    Raises:
        SchemaError: a draw asks for more problems than there are.
    """
    judged = frozenset(problem.question for problem in held_out)
    known = [problem for problem in problems if problem.question not in judged]

    def draw(count: int, seed: int) -> list[Problem]:
        if count > len(known):
            raise SchemaError(
                f"a step needs {count} problems; {name} has {len(known)} that are not held out. "
                "Lower `problems`."
            )
        chosen = np.random.default_rng(seed).permutation(len(known))[:count]
        return [known[place] for place in chosen.tolist()]

    def grade(
        traces: Sequence[Trace], problems: Sequence[Problem], encoder: Encoder
    ) -> list[Trace]:
        del encoder
        return graded(traces, {problem.name: problem.answer for problem in problems})[0]

    return Task(name, draw, grade, _stated, tuple(held_out))


def decisive(
    policy: Policy, problems: Sequence[Problem], traces: Sequence[Trace]
) -> Bool[np.ndarray, " token"]:
    """Tokens that decide the outcome: computed digits, or where a wrong response goes wrong.

    Args:
        policy: not asked.
        problems: not asked.
        traces: labelled by a planted task.

    Returns:
        True at every computed digit of a right response, one that is right by luck too, and at the
        first wrong token of a wrong one.
    """
    del policy, problems
    marked = [np.zeros(0, dtype=bool)]
    for trace in traces:
        kinds = np.array(trace.kinds or (), dtype=np.int64)
        first_wrong = np.arange(kinds.size) == trace.wrong_token
        marked.append(kinds == Kind.COMPUTED_DIGIT if trace.reward == 1 else first_wrong)
    return np.concatenate(marked)


def _others(
    task: PlantedTask,
    held_out: frozenset[str],
    count: int,
    *,
    seed: int,
    sizes: dict[str, object],
) -> list[Problem]:
    """Problems of distinct questions and names outside the held-out ones."""
    found: dict[str, Problem] = {}
    seeds = np.random.SeedSequence(seed).generate_state(MOST_DRAWS, np.uint64).tolist()
    for number, more in enumerate(seeds):
        for problem in task.problems(count, int(more), **sizes):
            if problem.question in held_out or problem.question in found or len(found) == count:
                continue
            # Each draw may number its problems from 0: names must still tell them apart.
            taken = any(other.name == problem.name for other in found.values())
            own = replace(problem, name=f"{problem.name}~{number}") if taken else problem
            found[problem.question] = own
        if len(found) == count:
            return list(found.values())
    raise SchemaError(
        f"a step needs {count} problems; {len(found)} were found outside the {len(held_out)} held "
        "out. Hold out fewer, or take a larger task."
    )


def _last_word(text: str) -> str | None:
    words = text.split()
    return words[-1] if words else None


def _stated(text: str) -> str | None:
    return final_answer(text).text or None
