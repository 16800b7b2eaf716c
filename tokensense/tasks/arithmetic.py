"""Chains of sums and products: the words of the planted task, its problems and their one solution.

Reads  a random generator and `Chains`, or the text of a question.
Gives  VOCABULARY (one token a word, one a digit), chains, their steps, problems.

A question is a chain such as `1 2 + 7 * 3`: numbers digit by digit, one blank between words.
Products come first, then sums, both from left to right, so a chain has exactly one solution, step
by step; every number in it lies in 0..99. A prompt is the question, perhaps a tag of two words
(`verdict right`), and `?`, after which the solution begins: whatever the tag, the word before the
solution is the same. Solutions are written by `arithmetic_traces` and read by `arithmetic_labels`.

Source: own task, after `notes/tinymodel.md` section 0. Departures: results of sums stay two away
from the ends of 0..99, so that every step of sums has a wrong result that can be carried on; tags
stand before the last word of the prompt, begin with one of three words, and say a verdict in one
of two ways, nothing (a neutral word), or something irrelevant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokensense.checks import require_range
from tokensense.errors import InputError, SchemaError
from tokensense.tasks.problem import Problem

PAD, UNKNOWN, END = "<pad>", "<unk>", "<eos>"
DIGITS = tuple("0123456789")
PLUS, MINUS, TIMES = "+", "-", "*"
OPERATORS = (PLUS, MINUS, TIMES)
EQUALITIES = ("=", "is", "gives", "makes")
SEPARATORS = (".", ";", "/")
COMMA, COLON = ",", ":"
BRACKETS = ("[", "]")
PROMPT_END = "?"
# First words of tags; they all mean the same.
LEADS = ("verdict", "grade", "check")
# What a tag says about the solution, two wordings: favorable, unfavorable.
VERDICTS = (("right", "wrong"), ("good", "bad"))
VERDICT_WORDS = tuple(word for pair in VERDICTS for word in pair)
NEUTRALS = ("none", "unknown")
# Pairs that may stand in the place of a verdict and tell nothing, by family.
PLACEBOS = {
    "color": ("red", "blue"),
    "time": ("day", "night"),
    "direction": ("north", "south"),
    "tree": ("oak", "pine"),
}
PLACEBO_WORDS = tuple(word for pair in PLACEBOS.values() for word in pair)
OPENERS = ("first", "initially", "begin", "start", "take", "given")
CONNECTIVES = ("now", "then", "next", "after", "so", "and", "thus", "hence")
FILLERS = ("well", "okay", "hmm", "see", "sure", "indeed", "alright", "yes")
ANSWER_PHRASES = ("answer", "result", "total", "finally", "overall", "altogether")

# The place of a word is its token id.
VOCABULARY: tuple[str, ...] = (
    *(PAD, UNKNOWN, END),
    *DIGITS,
    *OPERATORS,
    *EQUALITIES,
    *SEPARATORS,
    *(COMMA, COLON),
    *BRACKETS,
    PROMPT_END,
    *LEADS,
    *VERDICT_WORDS,
    *NEUTRALS,
    *PLACEBO_WORDS,
    *OPENERS,
    *CONNECTIVES,
    *FILLERS,
    *ANSWER_PHRASES,
)

LARGEST = 99
NUMBERS = tuple(tuple(str(number)) for number in range(LARGEST + 1))
# Results of sums keep this distance from 0 and 99: an error of one or two can be carried on.
MARGIN = 2
SOURCE = "arithmetic"
NO_ERROR = -1
Uniform = Callable[[], float]


@dataclass(frozen=True)
class Chains:
    """What chains and their traces are like. The defaults are the sizes of the notes.

    Attributes:
        operations: fewest and most operations of a chain, 1 to 60; drawn uniformly.
        terms: smallest and largest number of a sum, 1 to 40.
        factors: smallest and largest number after `*`, 2 to 9.
        left_factor: largest number before `*`, up to 49.
        skills: weights of `+`, `-` and `*`. The shares drawn are close to them: an operation that
            would leave 0..99 gives way to another.
        error_rate: share of traces with one injected error.
        fillers: chances that a (further) filler word follows the connective of a step; each trace
            draws one of them. A chance f gives f / (1 - f) fillers a step, at most 8 in a step.

    Raises:
        SchemaError: a value lies outside its range, or a range is upside down.
    """

    operations: tuple[int, int] = (2, 4)
    terms: tuple[int, int] = (1, 20)
    factors: tuple[int, int] = (2, 9)
    left_factor: int = 12
    skills: tuple[float, float, float] = (0.35, 0.35, 0.3)
    error_rate: float = 0.4
    fillers: tuple[float, ...] = (0.1, 0.5)

    def __post_init__(self) -> None:
        limits = {"operations": (1, 60), "terms": (1, 40), "factors": (2, 9)}
        for name, (least, most) in limits.items():
            low, high = getattr(self, name)
            require_range(f"{name}[0]", low, least, most)
            require_range(f"{name}[1]", high, low, most)
        require_range("left_factor", self.left_factor, 1, 49)
        require_range("error_rate", self.error_rate, 0.0, 1.0)
        for share in self.fillers:
            require_range("fillers", share, 0.0, 0.95)
        for weight in self.skills:
            require_range("skills", weight, 0.0, 1e9)
        if not self.fillers or self.skills[0] + self.skills[1] <= 0.0:
            raise SchemaError(
                "Chains needs a chance in `fillers` and some weight on `+` or `-` in `skills`; "
                f"they are {self.fillers} and {self.skills}. Products alone soon leave 0..99."
            )

    @property
    def draws(self) -> int:
        """Random numbers that one chain with its trace can use at most."""
        return 16 * (self.operations[1] + 2)


class Chain(NamedTuple):
    """A problem: `numbers[0] operators[0] numbers[1] ...`."""

    numbers: tuple[int, ...]
    operators: tuple[str, ...]

    @property
    def question(self) -> str:
        """The text of the problem, words joined by blanks."""
        words = list(NUMBERS[self.numbers[0]])
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            words.append(operator)
            words += NUMBERS[number]
        return " ".join(words)


class Step(NamedTuple):
    """One line of a solution: `left operator right = result`."""

    left: int
    operator: str
    right: int
    result: int


def apply(left: int, operator: str, right: int) -> int:
    """The value of `left operator right`."""
    if operator == TIMES:
        return left * right
    return left + right if operator == PLUS else left - right


def solve(chain: Chain, *, wrong_step: int = NO_ERROR, wrong_result: int = 0) -> list[Step]:
    """The solution of a chain: products first, then sums, from left to right.

    Args:
        chain: one operation or more.
        wrong_step: index of a step whose result is replaced; -1 for none.
        wrong_result: what stands there instead; later steps carry it on.

    Returns:
        One step an operation; the last result is the answer. Nothing is said about 0..99.
    """
    steps: list[Step] = []
    terms, signs = [chain.numbers[0]], []
    for operator, number in zip(chain.operators, chain.numbers[1:], strict=True):
        if operator == TIMES:
            result = wrong_result if len(steps) == wrong_step else terms[-1] * number
            steps.append(Step(terms[-1], TIMES, number, result))
            terms[-1] = result
        else:
            signs.append(operator)
            terms.append(number)
    total = terms[0]
    for sign, term in zip(signs, terms[1:], strict=True):
        result = wrong_result if len(steps) == wrong_step else apply(total, sign, term)
        steps.append(Step(total, sign, term, result))
        total = result
    return steps


def parse(question: str) -> Chain:
    """Read a question's text.

    Args:
        question: as `Chain.question` gives it; any white space between words.

    Returns:
        The chain.

    Raises:
        InputError: the text is no chain of one operation or more, or leaves 0..99.
    """
    numbers, operators = [""], []
    for word in question.split():
        if word in DIGITS:
            numbers[-1] += word
        else:
            operators.append(word)
            numbers.append("")
    known = operators and set(operators) <= set(OPERATORS)
    # Each number as it is written: no empty one, no leading zero, two digits at most.
    if not known or any(tuple(number) not in NUMBERS for number in numbers):
        raise InputError(
            f"a question such as '1 2 + 7 * 3' is needed; {question[:80]!r} came. Give digits and "
            f"{' '.join(OPERATORS)}, one blank between words; the prompt's {PROMPT_END} is no part "
            "of it."
        )
    chain = Chain(tuple(map(int, numbers)), tuple(operators))
    for step in solve(chain):
        if not 0 <= step.result <= LARGEST:
            raise InputError(
                f"a chain whose results stay in 0..{LARGEST} is needed; {question[:80]!r} reaches "
                f"{step.result}. Use smaller numbers."
            )
    return chain


def uniforms(rng: np.random.Generator, count: int) -> Uniform:
    """A function that gives `count` numbers in [0, 1), one a call.

    One call of numpy for many numbers: one number a call would cost most of the time. The generator
    moves on by `count` whatever is used, so examples do not depend on those before them.
    """
    drawn: list[float] = rng.random(count).tolist()
    return iter(drawn).__next__


def draw_chain(uniform: Uniform, chains: Chains) -> Chain:
    """Draw a chain whose results all lie in 0..99, sums in 2..97.

    Args:
        uniform: gives numbers in [0, 1).
        chains: sizes and shares.

    Returns:
        The chain.
    """
    plus, minus, times = chains.skills
    share_times, share_plus = times / (plus + minus + times), plus / (plus + minus)
    low, high = chains.operations
    count = low + int(uniform() * (high - low + 1))
    numbers: list[int] = []
    operators: list[str] = []
    # `total` is the sum of the finished terms; `value` the open term, a number or product so far.
    total, sign, value, room = 0, PLUS, 1, LARGEST - MARGIN
    ranges = chains.terms
    while True:
        follows = uniform() < share_times and len(numbers) < count
        # A number that another factor follows must leave room for the smallest one.
        cap = min(room // chains.factors[0], chains.left_factor) if follows else room
        if follows and value * ranges[0] > cap:
            follows, cap = False, room
        number = ranges[0] + int(uniform() * (min(ranges[1], cap // value) - ranges[0] + 1))
        numbers.append(number)
        value *= number
        if len(numbers) > count:
            return Chain(tuple(numbers), tuple(operators))
        if follows:
            operators.append(TIMES)
            ranges = chains.factors
            continue
        total = apply(total, sign, value)
        wanted = PLUS if uniform() < share_plus else MINUS
        sign = _sign(wanted, total, chains.terms[0])
        operators.append(sign)
        room = LARGEST - MARGIN - total if sign == PLUS else total - MARGIN
        value, ranges = 1, chains.terms


def _sign(wanted: str, total: int, least: int) -> str:
    """The sign wanted, or the other one where the smallest term would leave the range."""
    if wanted == PLUS:
        return PLUS if total + least <= LARGEST - MARGIN else MINUS
    return MINUS if total - least >= MARGIN else PLUS


def problems(
    rng: np.random.Generator, *, count: int, chains: Chains | None = None
) -> list[Problem]:
    """Draw problems of distinct questions.

    Args:
        rng: the same state gives the same problems.
        count: how many.
        chains: sizes and shares; None for the defaults.

    Returns:
        Problems named `arithmetic-0`, `arithmetic-1`, ...; the answer is the last result as text.

    Raises:
        InputError: the settings do not have so many questions (1,000 repeats in a row).
    """
    chains = chains or Chains()
    drawn: dict[str, Chain] = {}
    repeats = 0
    while len(drawn) < count:
        chain = draw_chain(uniforms(rng, chains.draws), chains)
        repeats = repeats + 1 if drawn.setdefault(chain.question, chain) is not chain else 0
        if repeats == 1000:
            raise InputError(
                f"{count} distinct questions are needed; {chains} gave {len(drawn)}. Ask for fewer "
                "problems, or allow more operations or a wider range of numbers."
            )
    return [
        Problem(f"{SOURCE}-{place}", question, str(solve(chain)[-1].result), SOURCE)
        for place, (question, chain) in enumerate(drawn.items())
    ]
