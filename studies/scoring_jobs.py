"""Jobs of the scoring benchmark: real questions and solutions under several contexts.

Reads  GSM8K questions with four model solutions each (one JSON object a line), a Policy.
Gives  JOBS, job.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokensense.models.plan import Branch
from tokensense.models.policy import Policy

VERDICTS = ("", "This solution was verified correct.", "This solution was verified wrong.")
LONGEST = 600  # characters of a solution taken from another question
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "May", "June")
COLORS = ("red", "green", "blue", "yellow", "white", "black", "gray", "pink", "brown")
PLACES = ("north", "south", "east", "west", "river", "lake", "hill", "valley", "forest")
THINGS = ("oak", "pine", "apple", "pear", "cherry", "copper", "silver", "gold", "iron")
TOPICS = (*DAYS, *COLORS, *PLACES, *THINGS)  # 36


class Job(NamedTuple):
    """questions: of the file. group: responses a question. examples: solved before the question.

    joined: solutions put together to a response. conditions: texts, the first one empty.
    """

    questions: int
    group: int
    conditions: tuple[str, ...]
    examples: int = 0
    joined: int = 1


PLACEBOS = ("", *(f"This solution was written about {word}." for word in TOPICS))
JOBS = {
    "short": Job(questions=4, group=4, conditions=VERDICTS),
    "long": Job(questions=1, group=8, conditions=VERDICTS, joined=6),
    "few-shot": Job(questions=2, group=8, conditions=VERDICTS, examples=6),
    "probe": Job(questions=1, group=4, conditions=PLACEBOS),
}


def job(name: str, policy: Policy, *, data: Path, quick: bool = False) -> list[Branch]:
    """Branches of a job; `quick` takes one question of it."""
    asked = JOBS[name]
    lines = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    texts = [text for line in lines for text in _solutions(line) if len(text) < LONGEST]
    count = 1 if quick else asked.questions
    found = []
    for number, line in enumerate(lines[asked.examples : asked.examples + count]):
        shots = "".join(
            f"{shot['question']}\n{_solutions(shot)[0]}\n\n" for shot in lines[: asked.examples]
        )
        own = list(_responses(asked, _solutions(line), texts[97 * number :]))
        for text in asked.conditions:
            context = tuple(policy.render(shots + line["question"], insert=text))
            found += [Branch(context, tuple(policy.encode(response))) for response in own]
    return found


def _solutions(line: dict[str, object]) -> list[str]:
    solutions = line["solutions"]
    assert isinstance(solutions, list)
    return [str(solution["solution"]) for solution in solutions]


def _responses(asked: Job, own: list[str], others: list[str]) -> Iterator[str]:
    """Solutions of the question; joined ones, or more than it has, are filled up from others."""
    pool = iter(others)
    for place in range(asked.group):
        parts = [own[place]] if place < len(own) and asked.joined == 1 else []
        while len(parts) < asked.joined:
            parts.append(next(pool))
        yield "\n".join(parts)
