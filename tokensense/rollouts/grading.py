"""What is known about responses that were just sampled.

Reads  traces, and the reference answer of each problem, or the planted task that it comes from.
Gives  graded: the traces with rewards, and why some have none; labelled: with rewards and labels.
Sign   rewards are 1 right, 0 wrong, NaN undecided.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokensense.rollouts.trajectory import Encoder, Trace
from tokensense.schema import NO_STEP, NO_TOKEN, Finish, Kind, Label
from tokensense.tasks.answers import AnswerChecker
from tokensense.tasks.planted import PlantedTask, Truth
from tokensense.tasks.problem import Problem


def graded(
    traces: Sequence[Trace], answers: Mapping[str, str | None]
) -> tuple[list[Trace], dict[str, int]]:
    """Rewards by the answer checker: 1 right, 0 wrong, NaN undecided.

    Args:
        traces: as sampled.
        answers: reference answer by problem name; None where none is known.

    Returns:
        The traces in their order with rewards, and reason -> count of the undecided ones.
    """
    undecided: Counter[str] = Counter()
    found = []
    with AnswerChecker() as checker:
        for trace in traces:
            answer = answers[trace.problem]
            if answer is None:
                undecided["no reference answer"] += 1
                found.append(trace)
                continue
            verdict = checker.check(trace.text, answer)
            if verdict.status == "undecided":
                undecided[verdict.reason] += 1
            found.append(replace(trace, reward=verdict.reward))
    return found, dict(undecided)


def labelled(
    traces: Sequence[Trace], problems: Sequence[Problem], *, task: PlantedTask, encoder: Encoder
) -> list[Trace]:
    """Rewards, kinds, steps and the first wrong token by the task that the problems come from.

    A model of language can be asked too, where its tokens are words of the task, blanks, or both: a
    token that is a blank alone is FORMAT, of the step of the word behind it, and never wrong; the
    end token that it stopped at counts as the task's own. A word of several tokens is no word.

    Args:
        traces: as sampled, with ids.
        problems: of the task; each trace answers one of them.
        task: knows the truth.
        encoder: gives the word of each id; white space around a word is the tokenizer's.

    Returns:
        The traces in their order. Label is ERROR where a token is wrong, whatever the reward: a
        right answer after an error is right by luck.

    Raises:
        InputError: a question is none of the task.
    """
    question = {problem.name: problem.question for problem in problems}
    words = {i: _word(i, encoder) for trace in traces for i in trace.ids or ()}
    found = []
    for trace in traces:
        own = [words[i] for i in trace.ids or ()]
        if own and trace.finish == Finish.STOP:
            own[-1] = task.end
        said = [place for place, word in enumerate(own) if word]
        read = task.label(question[trace.problem], [own[place] for place in said])
        truth = _over_tokens(read, said, count=len(own))
        right = truth.wrong_token == NO_TOKEN
        known = replace(
            trace,
            reward=float(truth.right),
            label=Label.NO_ERROR if right else Label.ERROR,
            wrong_step=truth.wrong_step,
            wrong_token=truth.wrong_token,
            kinds=truth.kinds,
            token_steps=truth.steps,
        )
        found.append(known)
    return found


def _over_tokens(truth: Truth, said: Sequence[int], *, count: int) -> Truth:
    """The truth about words, over the tokens that say them and the blanks between.

    Args:
        truth: of the words.
        said: place of each word's token, rising.
        count: tokens.
    """
    kinds, steps = [int(Kind.FORMAT)] * count, [NO_STEP] * count
    before = 0
    for kind, step, place in zip(truth.kinds, truth.steps, said, strict=True):
        kinds[place] = kind
        steps[before : place + 1] = [step] * (place + 1 - before)
        before = place + 1
    wrong = truth.wrong_token if truth.wrong_token == NO_TOKEN else said[truth.wrong_token]
    return Truth(tuple(kinds), tuple(steps), wrong, truth.right)


def _word(token: int, encoder: Encoder) -> str:
    return encoder.token_bytes(token).decode("utf-8", "replace").strip()
