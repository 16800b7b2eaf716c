r"""Mathematics problems from files as published: GSM8K, MATH, AIME, DAPO-17k.

Reads  JSON lines, or Parquet (extra `io`), in each data set's own layout:

    gsm8k   question, answer ("... #### 1,234")
    math    problem, answer; or problem, solution with its answer in the last `\boxed{}`; unique_id
    aime    problem, answer (0 to 999, integer or text such as "033"), id; key case varies
    dapo    prompt [{role, content}], reward_model {ground_truth}, extra_info {index}

Gives  distinct problems with plain reference answers, and counts of everything that was left out.

Departures: the instructions that DAPO-17k wraps around each question are removed (a policy's own
template adds what it needs; the same wrapping around all problems would be part of every prompt),
and thousands commas and leading zeros of integer answers are removed.

Source: the published files; the DAPO file repeats each problem about 100 times (verl#3065).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokensense.errors import InputError
from tokensense.tasks.extraction import last_box
from tokensense.tasks.problem import Problem, merge
from tokensense.tasks.records import (
    MISSING,
    Row,
    RowError,
    found,
    needed,
    printed_number,
    rows,
    shown,
    text,
)

CONTRADICTORY = "different answers to one question"
AIME_HIGHEST = 999
DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'


class ProblemFile(NamedTuple):
    """What a file held.

    Attributes:
        problems: one a question, in order of first appearance; names are unique.
        duplicates: rows left out because question and answer were there before.
        refused: "file:line: what was needed, what came", one a row that could not be read.
        set_aside: reason -> rows left out for it.
    """

    problems: list[Problem]
    duplicates: int
    refused: list[str]
    set_aside: dict[str, int]


class _Parsed(NamedTuple):
    """Question, answer, the id that the source gives, and its solution, if any."""

    question: str
    answer: str
    name: object
    solution: str | None = None


def read_problems(path: str | Path, *, format: str) -> ProblemFile:
    """Read the problems of one published file.

    Args:
        path: JSON lines, or Parquet by its suffix.
        format: the layout, see the module's header.

    Returns:
        See ProblemFile. Rows of equal question and answer are merged and counted; rows of equal
        question and different answers are all set aside and counted. A problem without an id is
        named by file and row; an id that two different problems share gets its row appended.

    Raises:
        InputError: the file is missing, is no such file, or not one row could be read.
        MissingExtraError: Parquet, and pyarrow is not installed.
        SchemaError: `format` is unknown.
    """
    # With it comes numpy, which the workers of the answer checks must not load with this package.
    from tokensense.checks import require_member

    require_member("format", format, PARSERS)
    refused: list[str] = []
    merged = merge(_problems(Path(path), format, refused))
    if refused and not merged.problems and not merged.contradictory:
        raise InputError(
            f"rows in the layout `{format}` are needed; of {path} none could be read, the first "
            f"because: {refused[0]}. Name another format, one of {sorted(PARSERS)}."
        )
    set_aside = {CONTRADICTORY: len(merged.contradictory)} if merged.contradictory else {}
    return ProblemFile(_named_apart(merged.problems), merged.duplicates, refused, set_aside)


def _problems(path: Path, layout: str, refused: list[str]) -> Iterator[Problem]:
    parse = PARSERS[layout]
    for row in rows(path, refused):
        try:
            read = parse(row.record)
            name = printed_number(read.name) or _place_name(layout, path, row)
        except RowError as error:
            refused.append(f"{row.place}: {error}")
        else:
            yield Problem(name, read.question, read.answer, path.name, solution=read.solution)


def _place_name(layout: str, path: Path, row: Row) -> str:
    # Row numbers count from 0 here, as everybody's "gsm8k-test-0" does.
    return f"{layout}-{path.stem}-{row.line - 1}"


def _named_apart(problems: list[Problem]) -> list[Problem]:
    """Problems whose id another one had before get a number appended."""
    used: set[str] = set()
    apart = []
    for problem in problems:
        name, repeat = problem.name, 1
        while name in used:
            repeat += 1
            name = f"{problem.name}#{repeat}"
        used.add(name)
        apart.append(replace(problem, name=name))
    return apart


def gsm8k_answer(solution: str) -> str:
    """The number after the last `####` (or `A:`, as in the model solutions), commas removed.

    Raises:
        RowError: there is none.

    >>> gsm8k_answer("3 * 411 = <<3*411=1233>>1233, and one more. #### 1,234")
    '1234'
    """
    marked = re.findall(r"(?:####|^A:)[ \t]*(\S[^\n]*)", solution, re.MULTILINE)
    if not marked:
        raise RowError(f"`#### answer` is needed; the text ends with {shown(solution[-40:])}")
    return plain_integer(marked[-1].strip())


def plain_integer(answer: str) -> str:
    """An integer without thousands commas and leading zeros; any other answer as it is.

    >>> plain_integer("1,234,567"), plain_integer("-033"), plain_integer("1,2")
    ('1234567', '-33', '1,2')
    """
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+", answer):
        answer = answer.replace(",", "")
    return re.sub(r"^(-?)0+(?=\d+$)", r"\1", answer)


def _gsm8k(record: Mapping[str, Any]) -> _Parsed:
    solution = text(record, "answer")
    return _Parsed(text(record, "question"), gsm8k_answer(solution), None, solution)


def _math(record: Mapping[str, Any]) -> _Parsed:
    given = found(record, "answer")
    if given is MISSING:
        box = last_box(text(record, "solution"))
        if box is None or box.rule == "none":
            why = "no box" if box is None else box.why
            raise RowError(f"`answer`, or a solution with its answer boxed, is needed; {why}")
        given = box.text
    answer = printed_number(given)
    if answer is None:
        raise RowError(f"`answer` must be text or a number; {shown(given)} came")
    solution = found(record, "solution")
    written = solution if isinstance(solution, str) and solution.strip() else None
    return _Parsed(text(record, "problem"), answer, record.get("unique_id"), written)


def _aime(record: Mapping[str, Any]) -> _Parsed:
    lower = {key.lower(): value for key, value in record.items()}
    answer = printed_number(needed(lower, "answer"))
    if answer is None or not re.fullmatch(r"\d{1,3}", answer):
        raise RowError(
            f"`answer` must be an integer from 0 to {AIME_HIGHEST}; {shown(lower['answer'])} came"
        )
    field = "problem" if "problem" in lower else "question"
    identity = next(
        (lower[key] for key in ("id", "problem_idx", "unique_id") if key in lower), None
    )
    return _Parsed(text(lower, field), plain_integer(answer), identity)


def _dapo(record: Mapping[str, Any]) -> _Parsed:
    prompt = needed(record, "prompt")
    turns = prompt if isinstance(prompt, list) else []
    asked = [turn for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "user"]
    if len(asked) != 1:
        raise RowError(
            f"`prompt` must be a list of turns, one of them the user's; {shown(prompt)} came"
        )
    truth = needed(record, "reward_model.ground_truth")
    answer = printed_number(truth)
    if answer is None:
        raise RowError(f"`reward_model.ground_truth` must be text or a number; {shown(truth)} came")
    question = text(asked[0], "content")
    if question.startswith(DAPO_HEAD) and question.endswith(DAPO_TAIL):
        question = question.removeprefix(DAPO_HEAD).removesuffix(DAPO_TAIL)
    index = found(record, "extra_info.index")
    return _Parsed(question, plain_integer(answer), index)


PARSERS: dict[str, Callable[[Mapping[str, Any]], _Parsed]] = {
    "aime": _aime,
    "dapo": _dapo,
    "gsm8k": _gsm8k,
    "math": _math,
}
