"""True values of every prefix of a response to a table chain, and the oracle's credit.

Reads  a chain, the facts, a response, and Skills: how a policy goes on from any prefix.
Gives  `prefix_values`: probability of reward 1 from each prefix on; `oracle_credit`: what each
       token changed about it.
Sign   credit positive: the token made the right answer likelier; in units of the reward.

The policy of the values fills every slot by itself: a result by `Skills.answers` of the look-up *as
written*, any other slot rightly with the probability `Skills.form` of its slot; a slip there breaks
the response. Fillers say nothing. Then, with B_k(d) the value before the index of step k when the
last digit is d, m steps and the answer a:

    B_m(d) = f_ans f_final f_end [d = a]
    B_k(d) = f_index f_table f_operand f_equals sum_r answers[table_k, d, r] B_{k+1}(r)

and inside a step the factors already decided are left out. A chain with errors is not lost: it is
right by luck with the probability that a later error leads back (tables are permutations).

Credit is V(after) - V(before) for core decisions and 0 for fillers: at a stop decision V(before)
is the value given that no filler is chosen, which is the same, so that the credit of index and
`ans` has mean 0 under the policy. Credits add up to V(whole response) - V(start), which is
reward - V(start) for a response that ended or broke; one that was cut off keeps the value that it
had. Under the policy of the values, credit has mean 0 at every token, and the expected sum of its
squares is the variance of the reward.

Source: rule dVx of shared/notes/assay.md, section 1. Departures: there V is the product of the
right-probabilities that are left, and 0 after any error; here luck is in it, so that V is exact.
A limit on tokens is not part of V.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Float64

from tokensense.checks import require_range
from tokensense.errors import SchemaError
from tokensense.tasks.tables import DIGITS, TABLES, Chain, Facts, answer
from tokensense.tasks.tables_labels import Slot, State, follow

_ROUNDING = 1e-6  # of rows of probabilities that come as float32


@dataclass(frozen=True)
class Form:
    """Probability that each slot which is no look-up is filled rightly, given no filler.

    Attributes:
        index: index of the next step.
        table: the step's table.
        operand: copy of the last digit.
        equals: the sign.
        answer: `ans` after the last step.
        final: copy of the last digit after `ans`.
        end: end token.
    """

    index: float = 1.0
    table: float = 1.0
    operand: float = 1.0
    equals: float = 1.0
    answer: float = 1.0
    final: float = 1.0
    end: float = 1.0

    def __post_init__(self) -> None:
        """Check that all are probabilities.

        Raises:
            SchemaError: one is not in [0, 1].
        """
        for field in fields(self):
            require_range(field.name, getattr(self, field.name), 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Skills:
    """How a policy answers: `Skills(facts.answers())` is the policy of the taught traces.

    Attributes:
        answers: distribution of the result of each look-up; `Facts.answers(right)` makes it from
            the probability of the right result.
        form: all other slots; without it they are always right.
    """

    answers: Float[np.ndarray, "table digit result"]
    form: Form = Form()

    def __post_init__(self) -> None:
        """Check that the rows are distributions.

        Raises:
            SchemaError: wrong shape, a negative entry, or a row that does not sum to 1.
        """
        shape = (TABLES, DIGITS, DIGITS)
        found = self.answers
        if found.shape != shape or not bool(
            (found >= 0).all() and (abs(found.sum(axis=-1) - 1.0) <= _ROUNDING).all()
        ):
            raise SchemaError(
                f"`answers` needs shape {shape} and rows of probabilities that sum to 1; it has "
                f"shape {found.shape}, smallest entry {found.min(initial=np.inf)}. "
                "Make it with `Facts.answers`, or divide each row by its sum."
            )


def step_values(
    chain: Chain, *, facts: Facts, skills: Skills
) -> Float64[np.ndarray, "boundary digit"]:
    """Probability of reward 1 before the index of each step, whatever the last digit.

    Args:
        chain: the problem.
        facts: the world: gives the right answer.
        skills: the policy.

    Returns:
        B[k, d]; row m, the last, is before `ans`. B[0, start] is the policy's accuracy.
    """
    form = skills.form
    before = form.index * form.table * form.operand * form.equals
    values = np.zeros((len(chain.tables) + 1, DIGITS))
    values[-1, answer(chain, facts)] = form.answer * form.final * form.end
    for step in range(len(chain.tables) - 1, -1, -1):
        values[step] = before * (skills.answers[chain.tables[step]] @ values[step + 1])
    return values


def prefix_values(
    chain: Chain, response: Sequence[int], *, facts: Facts, skills: Skills
) -> Float64[np.ndarray, " prefix"]:
    """Probability of reward 1 from each prefix of a response on.

    Args:
        chain: the problem.
        response: token ids; any sequence.
        facts: the world.
        skills: the policy that goes on.

    Returns:
        One value more than tokens: before the first token, ..., after the last.
    """
    values = step_values(chain, facts=facts, skills=skills)
    right = answer(chain, facts)
    known: dict[State, float] = {}
    found = []
    for state in follow(chain, response):
        if state not in known:
            known[state] = _value(state, chain, right=right, skills=skills, values=values)
        found.append(known[state])
    return np.array(found)


def oracle_credit(
    chain: Chain, response: Sequence[int], *, facts: Facts, skills: Skills
) -> Float64[np.ndarray, " token"]:
    """Value after each token minus value before it: exact credit of every core decision.

    Args:
        chain: the problem.
        response: token ids; any sequence.
        facts: the world.
        skills: the policy whose values count.

    Returns:
        Credit per token, exactly 0 for fillers and for what follows the end token or a break.
    """
    return np.diff(prefix_values(chain, response, facts=facts, skills=skills))


def _value(
    state: State,
    chain: Chain,
    *,
    right: int,
    skills: Skills,
    values: Float64[np.ndarray, "boundary digit"],
) -> float:
    """Value of one state; `values` are those before each index."""
    slot, step, table, digit = state
    form = skills.form
    if slot == Slot.BROKEN:
        return 0.0
    if slot == Slot.INDEX:
        return float(values[step, digit])
    if slot in (Slot.FINAL, Slot.END, Slot.ENDED):
        left = {Slot.FINAL: form.final * form.end, Slot.END: form.end, Slot.ENDED: 1.0}
        return left[slot] * (digit == right)
    # Inside a step: factors of the slots that are still to be filled.
    chance = 1.0 if slot == Slot.RESULT else form.equals
    if slot in (Slot.TABLE, Slot.OPERAND):
        chance *= form.operand
    if slot == Slot.TABLE:
        chance *= form.table
        table = chain.tables[step]
    return chance * float(skills.answers[table, digit] @ values[step + 1])
