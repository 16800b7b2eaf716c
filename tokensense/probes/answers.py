"""A wrong final answer for a problem, to stand beside the right one.

Reads  the reference answer and the wrong responses of the problem's group.
Gives  `wrong_answer`: what those responses answered, or the right answer with one digit changed.

Both answers should be equally long in tokens, or the pair they are inserted in would differ in
length as well and be set aside. So the choice is, in this order: the most frequent wrong answer of
the group that is as long as the right one; the right one with its last digit changed, where that
is as long; the most frequent wrong answer of any length. Ties go to the smaller text. The same
problem and group give the same answer.

Source: CEPO (arXiv:2605.19436) inserts the answer of the lowest-rewarded rollout. Departures: the
choice by length, and the digit where a group has no wrong answer (CEPO falls back to plain GRPO).
"""

import re
from collections import Counter
from collections.abc import Iterable

from tokensense.rollouts.trajectory import Encoder
from tokensense.tasks.extraction import final_answer, plain_number

# Longer "answers" are sentences; they would show the response rather than its answer.
LONGEST_ANSWER = 40
# Steps from one digit to another; one step is last, since an answer one off is often a slip.
STEPS = (3, 7, 4, 6, 2, 8, 5, 1, 9)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def wrong_answer(answer: str, responses: Iterable[str], *, encoder: Encoder) -> str | None:
    """A wrong final answer for one problem.

    Args:
        answer: the right one.
        responses: texts of the group's responses that are known to be wrong.
        encoder: counts tokens.

    Returns:
        The answer, or None where the group has none and the right one has no digit to change.
    """
    length = len(encoder.encode(f" {answer}"))
    texts = (_answered(response, answer) for response in responses)
    found = Counter(text for text in texts if text is not None)
    ranked = sorted(found, key=lambda text: (-found[text], text))
    alike = [text for text in ranked if len(encoder.encode(f" {text}")) == length]
    changed = [] if alike else with_other_digit(answer)
    alike += [text for text in changed if len(encoder.encode(f" {text}")) == length]
    return next(iter([*alike, *ranked, *changed]), None)


def with_other_digit(answer: str) -> list[str]:
    """The answer with its last digit changed, in fixed order; [] where it has no digit.

    0 is never put in: it would make 1/0, or a number that begins with 0.

    >>> with_other_digit("1,250 apples")[:3]
    ['1,253 apples', '1,257 apples', '1,254 apples']
    """
    match = re.search(r"\d(?=\D*$)", answer, re.ASCII)
    if match is None:
        return []
    place, digit = match.start(), int(match[0])
    others = [(digit + step) % 10 for step in STEPS]
    return [f"{answer[:place]}{d}{answer[place + 1 :]}" for d in others if d]


def _answered(response: str, right: str) -> str | None:
    """Final answer of a wrong response; None where it has none that could stand beside `right`."""
    found = final_answer(response)
    text = found.text
    value = plain_number(right)
    if value is not None:
        numbers = _NUMBER.findall(text)
        text = numbers[-1] if numbers else ""
    elif found.rule == "last line":
        return None
    if not text or len(text) > LONGEST_ANSWER or text == right:
        return None
    return None if value is not None and plain_number(text) == value else text
