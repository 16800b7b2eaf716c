"""Judging: by answers, and by the truth of a planted task."""

import math

from tests.builders import ListEncoder
from tokensense.rollouts.grading import graded, labelled
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Finish, Kind, Label
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


def test_blanks_and_an_end_token_of_its_own_are_read_over():
    # Digits without the blank before them, as many models of language have them.
    words = [" ", *"0123456789", "first", " +", " =", " .", " answer", "<|im_end|>", " right"]
    encoder = ListEncoder(words)

    def asked(tokens, finish):
        ids = tuple(words.index(token) for token in tokens)
        problem = Problem("a", QUESTION, "19")
        trace = Trace("a", "t", "", ids=ids, finish=finish)
        (found,) = labelled([trace], [problem], task=PLANTED["arithmetic"], encoder=encoder)
        return found

    sum_of = ["first", " ", "1", " ", "2", " +", " ", "7", " =", " ", "1", " "]
    rest = [" .", " answer", " ", "1", " ", "9", "<|im_end|>"]
    found = asked([*sum_of, "9", *rest], Finish.STOP)
    assert (found.reward, found.wrong_token) == (1.0, -1)
    assert found.token_steps == (0,) * 14 + (1,) * 5 + (-1,)
    assert found.kinds[1] == found.kinds[3] == Kind.FORMAT
    assert found.kinds[2] == Kind.CARRIED_DIGIT
    assert found.kinds[12] == Kind.COMPUTED_DIGIT
    wrong = asked([*sum_of, "8", *rest], Finish.STOP)
    assert (wrong.reward, wrong.wrong_token, wrong.wrong_step) == (1.0, 12, 0)
    # Written out, the name of an end token is no end.
    assert asked([*sum_of, "9", *rest], Finish.LENGTH).reward == 0.0
    assert asked([*sum_of, "9", *rest, " "], Finish.LENGTH).token_steps[-1] == -1


def test_a_problem_without_an_answer_is_undecided_and_says_why():
    traces = [Trace("a", "t", "It is 2."), Trace("b", "u", "It is 3.")]
    found, undecided = graded(traces, {"a": None, "b": "3"})
    assert math.isnan(found[0].reward)
    assert found[1].reward == 1.0
    assert undecided == {"no reference answer": 1}
