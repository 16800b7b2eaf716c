"""Labelled traces as published: ProcessBench, BIG-Bench-Mistake, the GSM8K model solutions.

Reads  JSON lines (or Parquet):

    processbench     id, generator, problem, steps, label (first wrong step, -1 none),
                     final_answer_correct
    bigbench_mistake input, steps, target, answer, mistake_index (first wrong step, null none)
    gsm8k_solutions  problem_id, question, ground_truth ("... A: 18"), solutions [{model, solution,
                     is_correct}]

Gives  `Imported`: rewards from the published verdicts, the labelled wrong step, and the characters
       of each step, from which tokens get their steps.
Sign   reward 1 right, 0 wrong.

Steps are joined by a blank line (ProcessBench cut its responses there) or a line end (BIG-Bench-
Mistake), so that step bounds are exact; the separators belong to no step. Labels that contradict
the verdict are set aside and counted, never repaired: "no wrong step" with a wrong final answer,
a wrong step in an arithmetic trace with the right answer (ProcessBench allows that: a response
may be right by luck), a verdict against the answer that the solution states.

Source: Zheng et al. 2024, arXiv:2412.06559 (ProcessBench); Tyen et al. 2024, arXiv:2311.08516
(BIG-Bench-Mistake, traces of PaLM 2 L); Cobbe et al. 2021, arXiv:2110.14168 (GSM8K).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokensense.errors import InputError
from tokensense.importing.collecting import Entry, SetAsideError, collect, steps_joined
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.schema import NO_STEP, Label
from tokensense.tasks.extraction import final_answer, plain_number
from tokensense.tasks.math import gsm8k_answer, plain_integer
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import Row, RowError, needed, shown, text, texts, truth, whole_number

BIG_BENCH_GENERATOR = "PaLM-2-L"
NO_STEP_BUT_WRONG = "labelled without a wrong step, but the final answer is wrong"
STEP_BUT_RIGHT = "labelled with a wrong step, but the final answer is right"
VERDICT_AGAINST_ANSWER = "verdict contradicts the answer that the solution states"


def read_processbench(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read ProcessBench; see the module's header.

    Args:
        path: JSON lines or Parquet.
        fields: must be None.
        limit: see `collecting.collect`.

    Returns:
        One trace a row; a problem is named by the id of its first row. No reference answers.

    Raises:
        InputError: `fields` is given; or see `collecting.collect`.
    """
    return _read(path, _processbench, "processbench", fields=fields, limit=limit)


def read_bigbench_mistake(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read BIG-Bench-Mistake arithmetic; see the module's header.

    Args:
        path: JSON lines or Parquet.
        fields: must be None.
        limit: see `collecting.collect`.

    Returns:
        One trace a row, named by row; reward 1 where `answer` equals `target`.

    Raises:
        InputError: `fields` is given; or see `collecting.collect`.
    """
    return _read(path, _bigbench_mistake, "bigbench_mistake", fields=fields, limit=limit)


def read_gsm8k_solutions(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read the GSM8K model solutions; see the module's header.

    Args:
        path: JSON lines or Parquet.
        fields: must be None.
        limit: see `collecting.collect`.

    Returns:
        One trace a solution, named "problem_id/model"; the generator is the model.

    Raises:
        InputError: `fields` is given; or see `collecting.collect`.
    """
    return _read(path, _gsm8k_solutions, "gsm8k_solutions", fields=fields, limit=limit)


def _read(
    path: str | Path,
    parse: Callable[[Row], Entry],
    layout: str,
    *,
    fields: Mapping[str, str] | None,
    limit: int | None,
) -> Imported:
    if fields is not None:
        raise InputError(
            f"no field map is needed for the format `{layout}`, whose fields are fixed; "
            f"{dict(fields)} came. Leave it out, or use the format `jsonl`."
        )
    return collect(path, parse, format=layout, limit=limit)


def _processbench(row: Row) -> Entry:
    record = row.record
    steps = texts(record, "steps")
    wrong = whole_number(record, "label", low=NO_STEP, high=len(steps) - 1)
    correct = truth(record, "final_answer_correct")
    if wrong == NO_STEP and not correct:
        raise SetAsideError(NO_STEP_BUT_WRONG)
    problem = Problem(text(record, "id"), text(record, "problem"), None, _source(row))
    generator = text(record, "generator")
    joined = steps_joined(steps, "\n\n")
    return Entry(
        problem, [_stepped(problem, joined, wrong=wrong, correct=correct, generator=generator)]
    )


def _bigbench_mistake(row: Row) -> Entry:
    record = row.record
    steps = texts(record, "steps")
    wrong = NO_STEP
    if needed(record, "mistake_index") is not None:
        wrong = whole_number(record, "mistake_index", low=0, high=len(steps) - 1)
    target = plain_integer(text(record, "target").strip())
    correct = plain_integer(text(record, "answer").strip()) == target
    if wrong == NO_STEP and not correct:
        raise SetAsideError(NO_STEP_BUT_WRONG)
    if wrong != NO_STEP and correct:
        raise SetAsideError(STEP_BUT_RIGHT)
    name = f"bigbench_mistake-{row.line - 1}"
    problem = Problem(name, text(record, "input"), target, _source(row))
    joined = steps_joined(steps, "\n")
    generator = BIG_BENCH_GENERATOR
    return Entry(
        problem, [_stepped(problem, joined, wrong=wrong, correct=correct, generator=generator)]
    )


def _stepped(
    problem: Problem,
    steps: tuple[str, tuple[tuple[int, int], ...]],
    *,
    wrong: int,
    correct: bool,
    generator: str,
) -> Trace:
    response, bounds = steps
    return Trace(
        problem=problem.name,
        name=problem.name,
        text=response,
        reward=float(correct),
        generator=generator,
        label=Label.NO_ERROR if wrong == NO_STEP else Label.ERROR,
        wrong_step=wrong,
        steps=bounds,
    )


def _gsm8k_solutions(row: Row) -> Entry:
    record = row.record
    answer = plain_integer(gsm8k_answer(text(record, "ground_truth")))
    problem = Problem(
        text(record, "problem_id"),
        text(record, "question"),
        answer,
        _source(row),
        solution=text(record, "ground_truth"),
    )
    solutions = needed(record, "solutions")
    if not isinstance(solutions, list) or not solutions:
        raise RowError(f"`solutions` must be a list of solutions; {shown(solutions)} came")
    traces, set_aside = [], []
    for solution in solutions:
        if not isinstance(solution, dict):
            raise RowError(f"a solution must be an object; {shown(solution)} came")
        trace = _solution(problem, solution)
        if contradicts(trace.text, answer, correct=trace.reward == 1.0):
            set_aside.append(VERDICT_AGAINST_ANSWER)
        else:
            traces.append(trace)
    return Entry(problem, traces, tuple(set_aside))


def _solution(problem: Problem, solution: Mapping[str, Any]) -> Trace:
    model = text(solution, "model")
    return Trace(
        problem=problem.name,
        name=f"{problem.name}/{model}",
        text=text(solution, "solution", empty=True),
        reward=float(truth(solution, "is_correct")),
        generator=model,
    )


def contradicts(response: str, answer: str, *, correct: bool) -> bool:
    r"""Does a verdict contradict the number that a response states?

    Args:
        response: a solution that ends in "A: number"; without one nothing contradicts.
        answer: the reference answer.
        correct: the published verdict.

    >>> contradicts("2 + 2 = 4\nA: 4", "4", correct=False), contradicts("A: 5", "4", correct=False)
    (True, False)
    """
    found = final_answer(response)
    stated, known = plain_number(found.text), plain_number(answer)
    if found.rule != "stated" or stated is None or known is None:
        return False
    return (stated == known) != correct


def _source(row: Row) -> str:
    return Path(row.place.rpartition(":")[0]).name
