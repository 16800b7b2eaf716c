"""Judging: by answers, and by the truth of a planted task."""

import math

from tests.builders import ListEncoder
from tokensense.rollouts.grading import graded, labelled
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Kind, Label
from tokensense.tasks.planted import PLANTED
from tokensense.tasks.problem import Problem

QUESTION = "1 2 + 7"
# Tokens carry the blank before the word, as those of the tiny policies do.
WORDS = [*(f" {digit}" for digit in range(10)), " first", " +", " =", " .", " answer", "<eos>"]
ENCODER = ListEncoder(WORDS)


def response(text):
    stripped = [word.strip() for word in WORDS]
    return Trace("a", "t", "", ids=tuple(stripped.index(word) for word in text.split()))


def test_traces_of_a_planted_task_are_labelled_token_by_token():
    texts = [
        "first 1 2 + 7 = 1 9 . answer 1 9 <eos>",
        "first 1 2 + 8 = 1 9 . answer 1 9 <eos>",  # right by luck
        "first 1 2 + 7 = 2 0 . answer 2 0 <eos>",
        "first 1 2 + 7 =",  # cut off
    ]
    found = labelled(
        [response(text) for text in texts],
        [Problem("a", QUESTION, "19")],
        task=PLANTED["arithmetic"],
        encoder=ENCODER,
    )
    assert [trace.reward for trace in found] == [1.0, 1.0, 0.0, 0.0]
    assert [trace.wrong_token for trace in found] == [-1, 4, 6, -1]
    assert [trace.wrong_step for trace in found] == [-1, 0, 0, -1]
    good, bad = Label.NO_ERROR, Label.ERROR
    assert [trace.label for trace in found] == [good, bad, bad, good]
    assert found[0].kinds[:3] == (Kind.CONNECTIVE, Kind.CARRIED_DIGIT, Kind.CARRIED_DIGIT)
    assert found[0].token_steps == (0,) * 9 + (1,) * 3 + (-1,)


def test_a_problem_without_an_answer_is_undecided_and_says_why():
    traces = [Trace("a", "t", "It is 2."), Trace("b", "u", "It is 3.")]
    found, undecided = graded(traces, {"a": None, "b": "3"})
    assert math.isnan(found[0].reward)
    assert found[1].reward == 1.0
    assert undecided == {"no reference answer": 1}
