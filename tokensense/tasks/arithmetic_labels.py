"""What every token of a solution is, where it first goes wrong, and whether it ends right.

Reads  any words, well formed or not, and the question they answer.
Gives  Labels; `verify`, the verdict alone.

The reading is causal: the label of a token depends on the tokens up to it, so labels of a prefix
are the prefix of the labels.

Kinds: digits are CARRIED (operands), COMPUTED (a number right after an equality word) or
FINAL_ANSWER (after an answer phrase or `[`, until an operator, equality or separator). Operators
and equality words are OPERATOR; openers, connectives and answer phrases CONNECTIVE; fillers
DISCOURSE; punctuation, brackets and the end token FORMAT; all else, and all after the end token,
OTHER.

Wrong token: a solution is also a stream of events, which are digits, the end of a number (carried
by the token after its last digit), operators, equality (whatever its word) and the end token. The
stream of the right solution is unique, since steps have one order; the first token with an event
that differs is wrong. Words, punctuation and brackets are free. Operands in another order are
wrong. Ending too early is wrong at the end token; a solution that was cut off need have no wrong
token. What comes after a wrong token is not judged.

Source: own rules, after `notes/tinymodel.md` section 0; the end event is added, so that each
finished solution with a wrong number has a wrong token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int8, Int32

from tokensense.schema import NO_STEP, Kind
from tokensense.tasks.arithmetic import (
    ANSWER_PHRASES,
    BRACKETS,
    COLON,
    COMMA,
    CONNECTIVES,
    DIGITS,
    END,
    EQUALITIES,
    FILLERS,
    NUMBERS,
    OPENERS,
    OPERATORS,
    PROMPT_END,
    SEPARATORS,
    Step,
    parse,
    solve,
)

NO_TOKEN = -1
_NUMBER_END = "number end"
_EQUALITY = "equality"
_DIGITS = frozenset(DIGITS)
_SEPARATORS = frozenset(SEPARATORS)
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((*OPERATORS, *EQUALITIES), Kind.OPERATOR),
    **dict.fromkeys((*OPENERS, *CONNECTIVES, *ANSWER_PHRASES), Kind.CONNECTIVE),
    **dict.fromkeys(FILLERS, Kind.DISCOURSE),
    **dict.fromkeys((*SEPARATORS, COMMA, COLON, *BRACKETS, PROMPT_END, END), Kind.FORMAT),
}
# Words that are events, and words that say what the next number is.
_EVENTS = {
    **{word: word for word in (*OPERATORS, END)},
    **dict.fromkeys(EQUALITIES, _EQUALITY),
}
_NEXT_NUMBER: dict[str, Kind] = {
    **dict.fromkeys((*OPERATORS, *SEPARATORS, BRACKETS[1]), Kind.CARRIED_DIGIT),
    **dict.fromkeys(EQUALITIES, Kind.COMPUTED_DIGIT),
    **dict.fromkeys((*ANSWER_PHRASES, BRACKETS[0]), Kind.FINAL_ANSWER),
}


class Labels(NamedTuple):
    """What is known about the tokens of one solution.

    Attributes:
        kind: values of `schema.Kind`; dims (token,).
        step: index of the step that holds the token, a separator ends its step; -1 from the end
            token on; dims (token,).
        wrong_token: index of the first wrong token, -1 for none.
        right: the final number is right and the end token is there.
        lucky: right, and yet a token is wrong.
        finished: the end token is there.
    """

    kind: Int8[np.ndarray, " token"]
    step: Int32[np.ndarray, " token"]
    wrong_token: int
    right: bool
    lucky: bool
    finished: bool

    @property
    def reward(self) -> float:
        """1 right, 0 wrong or cut off."""
        return float(self.right)

    @property
    def wrong_step(self) -> int:
        """Index of the step that holds the first wrong token; -1 for none, or if it ends early."""
        return NO_STEP if self.wrong_token == NO_TOKEN else int(self.step[self.wrong_token])


def label(words: Sequence[str], question: str) -> Labels:
    """Label every token of a solution.

    Args:
        words: one a token, with the end token where it was sampled; any text is allowed.
        question: the text of the question.

    Returns:
        Labels; see the module's header.

    Raises:
        InputError: the question is not one.
    """
    kinds, steps = _kinds_and_steps(words)
    steps_of_question = solve(parse(question))
    wrong = _first_wrong(words, _events(steps_of_question))
    right = _ends_right(words, NUMBERS[steps_of_question[-1].result])
    return Labels(
        kind=np.array(kinds, np.int8),
        step=np.array(steps, np.int32),
        wrong_token=wrong,
        right=right,
        lucky=right and wrong != NO_TOKEN,
        finished=END in words,
    )


def verify(words: Sequence[str], question: str) -> bool:
    """Whether a solution ends, and its last number before the end token is the right one.

    Args:
        words: as for `label`.
        question: the text of the question.

    Returns:
        True: right. A solution that was cut off is wrong, and so are leading zeros.

    Raises:
        InputError: the question is not one.
    """
    return _ends_right(words, NUMBERS[solve(parse(question))[-1].result])


def _ends_right(words: Sequence[str], answer: tuple[str, ...]) -> bool:
    """Whether the end token is there and the last run of digits before it is `answer`."""
    if END not in words:
        return False
    place = words.index(END)
    while place and words[place - 1] not in _DIGITS:
        place -= 1
    stop = place
    while place and words[place - 1] in _DIGITS:
        place -= 1
    return tuple(words[place:stop]) == answer


def _kinds_and_steps(words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Kind and step of each token."""
    kinds: list[int] = [Kind.OTHER] * len(words)
    steps = [NO_STEP] * len(words)
    step, number, within = 0, Kind.CARRIED_DIGIT, False
    for place, word in enumerate(words):
        if word in _DIGITS:
            kinds[place], within = number, True
        else:
            if within and number == Kind.COMPUTED_DIGIT:
                number = Kind.CARRIED_DIGIT  # one number a result
            within = False
            number = _NEXT_NUMBER.get(word, number)
            kinds[place] = _KINDS.get(word, Kind.OTHER)
        if word == END:
            break
        steps[place] = step
        step += word in _SEPARATORS
    return kinds, steps


def _events(steps: Sequence[Step]) -> list[str]:
    """The events of the right solution."""
    events: list[str] = []
    for left, operator, right, result in steps:
        events += (*NUMBERS[left], _NUMBER_END, operator, *NUMBERS[right], _NUMBER_END, _EQUALITY)
        events += (*NUMBERS[result], _NUMBER_END)
    events += (*NUMBERS[steps[-1].result], _NUMBER_END, END)
    return events


def _first_wrong(words: Sequence[str], events: list[str]) -> int:
    """Index of the first token with an event other than the next of `events`, -1 for none."""
    known, within = 0, False
    for place, word in enumerate(words):
        if word in _DIGITS:
            within = True
            event: str | None = word
        else:
            if within and events[known] != _NUMBER_END:
                return place
            known += within
            within = False
            event = _EVENTS.get(word)
        if event is None:
            continue
        if events[known] != event:
            return place
        if event == END:
            break
        known += 1
    return NO_TOKEN
