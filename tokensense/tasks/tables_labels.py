"""What every token of any response to a table chain is: kind, decision, first wrong one, reward.

Reads  a chain, the facts, and the token ids of a response as sampled: any sequence is taken.
Gives  `follow`: the state before each token and after the last; `label`: arrays and verdict.

One automaton reads the response. Fillers never change its state. Every other token up to the end
token is a core decision, and the state says what the slot should hold *given what is written*: the
operand is the digit written last, also when that digit is wrong. A wrong decision that still fits
its slot (a wrong digit, another table, another step's index, the answer too early) is gone on from:
an index of step k makes step k the next one. A token that fits no slot breaks the response for
good, as do an index beyond the plan and a word of the prompt. Up to the first wrong decision the
response is the one right response, fillers aside, so `first_wrong` is the first deviation.

The reward is 1 if the response is unbroken and ends with `ans`, the right digit and the end token;
right by luck if a decision was wrong. What follows the end token is neither read nor judged.

Classes of the notes: dec = COMPUTED_DIGIT, car = CARRIED_DIGIT and FINAL_ANSWER, str = FORMAT and
OPERATOR, sty = DISCOURSE. After a break a token's kind still follows from the core token before it.

Source: shared/notes/assay.md, section 1. Departure: there the reward is last digit and end token
alone, so a broken response could be paid; here it is not, so that values are exact.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int8, Int32

from tokensense.schema import Kind
from tokensense.tasks.tables import (
    ANSWER,
    DIGITS,
    END,
    EQUALS,
    FILLERS,
    FIRST_DIGIT,
    FIRST_FILLER,
    FIRST_INDEX,
    FIRST_TABLE,
    MOST_LOOKUPS,
    TABLES,
    Chain,
    Facts,
    answer,
)

NONE = -1


class Slot(IntEnum):
    """What the next core token of a response should be."""

    INDEX = 0  # of the next step, or `ans` after the last
    TABLE = 1
    OPERAND = 2
    EQUALS = 3
    RESULT = 4
    FINAL = 5  # the digit after `ans`
    END = 6
    ENDED = 7  # nothing more: the end token was read
    BROKEN = 8  # nothing that follows can be right


class State(NamedTuple):
    """Where a response stands after a prefix.

    Attributes:
        slot: what comes next.
        step: look-up in progress, or the next one.
        table: the table written for it, -1 where none is.
        digit: the digit written last (at the beginning the start digit): what is looked up,
            carried on or, at END and ENDED, given as the answer. -1 once ended without an answer.
    """

    slot: Slot
    step: int
    table: int
    digit: int


class Labels(NamedTuple):
    """What the generator knows about a response.

    Attributes:
        kind: what each token is, a schema.Kind.
        slot: the Slot that each token came to.
        core: is the token a decision: no filler, and not after the end token.
        wrong: a core token that is not what its slot should hold; False after a break.
        step: the look-up that the token belongs to, fillers to the one before them; -1 before the
            first index, from `ans` on, and after a break.
        first_wrong: index of the first wrong token, -1 if none.
        reward: 1 right, 0 wrong.
        lucky: reward 1 with a wrong decision on the way.
        ended: the end token was read; False: cut off.
    """

    kind: Int8[np.ndarray, " token"]
    slot: Int8[np.ndarray, " token"]
    core: Bool[np.ndarray, " token"]
    wrong: Bool[np.ndarray, " token"]
    step: Int32[np.ndarray, " token"]
    first_wrong: int
    reward: int
    lucky: bool
    ended: bool


def follow(chain: Chain, response: Sequence[int]) -> list[State]:
    """States of a response: before each token, and after the last.

    Args:
        chain: the problem; gives start digit and number of steps.
        response: token ids.

    Returns:
        One state more than tokens.
    """
    states = [State(Slot.INDEX, 0, NONE, chain.start)]
    for token in response:
        states.append(_after(states[-1], token, steps=len(chain.tables)))
    return states


def expected(state: State, chain: Chain, facts: Facts) -> int:
    """The one right core token in a state, given what is written; -1 where none can be right."""
    slot, step, table, digit = state
    if slot == Slot.INDEX:
        return FIRST_INDEX + step if step < len(chain.tables) else ANSWER
    if slot == Slot.TABLE:
        return FIRST_TABLE + chain.tables[step]
    if slot in (Slot.OPERAND, Slot.FINAL):
        return FIRST_DIGIT + digit
    if slot == Slot.RESULT:
        return FIRST_DIGIT + int(facts.result[table, digit])
    return {Slot.EQUALS: EQUALS, Slot.END: END}.get(slot, NONE)


def reward_of(state: State, chain: Chain, facts: Facts) -> int:
    """1 if a response that stops in this state ended with the right answer, else 0."""
    return int(state.slot == Slot.ENDED and state.digit == answer(chain, facts))


def label(chain: Chain, response: Sequence[int], *, facts: Facts) -> Labels:
    """Label every token of a response, and the response.

    Args:
        chain: the problem.
        response: token ids as sampled; any integers, an empty response too.
        facts: the world.

    Returns:
        See Labels.
    """
    states = follow(chain, response)
    before, final = states[:-1], states[-1]
    n = len(response)
    kind = np.full(n, Kind.OTHER, dtype=np.int8)
    core, wrong = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    step = np.full(n, NONE, dtype=np.int32)
    last = NONE  # the core token before
    for i, (state, token) in enumerate(zip(before, response, strict=True)):
        if state.slot == Slot.ENDED:
            break
        kind[i] = _kind(token, last)
        step[i] = _step_of(state, states[i + 1])
        if not _is_filler(token):
            core[i], last = True, token
            wrong[i] = state.slot != Slot.BROKEN and token != expected(state, chain, facts)
    first_wrong = int(wrong.argmax()) if wrong.any() else NONE
    reward = reward_of(final, chain, facts)
    return Labels(
        kind=kind,
        slot=np.array([state.slot for state in before], dtype=np.int8),
        core=core,
        wrong=wrong,
        step=step,
        first_wrong=first_wrong,
        reward=reward,
        lucky=reward == 1 and first_wrong != NONE,
        ended=END in response,
    )


def verify(chain: Chain, response: Sequence[int], *, facts: Facts) -> int:
    """Reward of a response alone: 1 right, 0 wrong."""
    return reward_of(follow(chain, response)[-1], chain, facts)


def _after(state: State, token: int, *, steps: int) -> State:
    """State after one more token of any kind."""
    slot, step, table, digit = state
    if slot == Slot.ENDED or _is_filler(token):
        return state
    if token == END:
        return State(Slot.ENDED, step, NONE, digit if slot == Slot.END else NONE)
    written, index, operator = token - FIRST_DIGIT, token - FIRST_INDEX, token - FIRST_TABLE
    is_digit = 0 <= written < DIGITS
    following = State(Slot.BROKEN, step, NONE, NONE)
    if slot == Slot.INDEX and 0 <= index < steps:
        following = State(Slot.TABLE, index, NONE, digit)
    elif slot == Slot.INDEX and token == ANSWER:
        following = State(Slot.FINAL, step, NONE, digit)
    elif slot == Slot.TABLE and 0 <= operator < TABLES:
        following = State(Slot.OPERAND, step, operator, digit)
    elif slot == Slot.OPERAND and is_digit:
        following = State(Slot.EQUALS, step, table, written)
    elif slot == Slot.EQUALS and token == EQUALS:
        following = State(Slot.RESULT, step, table, digit)
    elif slot == Slot.RESULT and is_digit:
        following = State(Slot.INDEX, step + 1, NONE, written)
    elif slot == Slot.FINAL and is_digit:
        following = State(Slot.END, step, NONE, written)
    return following


def _step_of(state: State, following: State) -> int:
    """Look-up that a token belongs to, from the states around it."""
    within = (Slot.TABLE, Slot.OPERAND, Slot.EQUALS, Slot.RESULT)
    if state.slot in within and following.slot != Slot.BROKEN:
        return state.step
    if following.slot == Slot.TABLE:  # an index
        return following.step
    if state.slot == following.slot == Slot.INDEX:  # a filler after a result, or before all steps
        return state.step - 1
    return NONE


def _kind(token: int, last: int) -> Kind:
    """Kind of a token by itself and the core token before it."""
    if 0 <= token - FIRST_DIGIT < DIGITS:
        after = {EQUALS: Kind.COMPUTED_DIGIT, ANSWER: Kind.FINAL_ANSWER}
        return after.get(last, Kind.CARRIED_DIGIT)
    if _is_filler(token):
        return Kind.DISCOURSE
    if token == EQUALS or 0 <= token - FIRST_TABLE < TABLES:
        return Kind.OPERATOR
    if token in (ANSWER, END) or 0 <= token - FIRST_INDEX < MOST_LOOKUPS:
        return Kind.FORMAT
    return Kind.OTHER


def _is_filler(token: int) -> bool:
    """Is the token a filler word?"""
    return 0 <= token - FIRST_FILLER < len(FILLERS)
