"""Chains of planted table look-ups: a task in which credit rules can be told apart.

Reads  a Regime (all dials) and a NumPy generator; nothing else is random.
Gives  Facts (what is true and what the taught policy knows), Chain (a problem), and VOCABULARY,
       the fixed words: the id of a word is its place there.

There are 8 tables, each a permutation of 10 digits: 80 facts. A problem starts from a digit and
looks it up in one table after the other:

    question  q 3 F2 P0_o1 P1_o5              start, filler mode, table of each step
    prompt    q 3 F2 P0_o1 P1_o5 R ?          question, tag (one word or none), and `?`
    response  I_0 o1 3 = 7 well so I_1 o5 7 = 2 hence ans 2 <eos>

Half of the facts are weak: taught with errors, most of which are one fixed digit (a misconception).
A wrong digit is carried on by later steps. After each result come fillers, words that say nothing
(mode F2), or none (F0). A tag says that the response is right (R) or wrong (W), or nothing: N, and
the letters of PLACEBOS. All tags are one word, and the prompt's last word is the same under each.

Taught traces are in `tables_examples`, labels in `tables_labels`, true values in `tables_values`.

Source: shared/notes/assay.md, section 1. The notes leave open, and here it is so: errors that are
not the misconception are uniform over the other eight digits, and weak facts are drawn from all 80,
not table by table. Words of fillers are ours. Departures: there the tag stands at the end of the
prompt and is always there; here it is put in before the last word, so that the base prompt has
none, and N and placebo letters, both as long as R and W, keep positions where a verdict puts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Int

from tokensense.checks import require_range
from tokensense.errors import InputError, SchemaError
from tokensense.tasks.problem import Problem

TABLES = 8
DIGITS = 10
MOST_LOOKUPS = 12  # the fixed vocabulary has words for as many steps
STYLE_WORDS = 6  # so many of FILLERS, from the first, are favored by tagged traces
FILLERS = (
    *("well", "so", "now", "then", "okay", "onward"),
    *("hmm", "let", "me", "see", "next", "here", "we", "look", "up", "this"),
    *("entry", "again", "which", "gives", "thus", "hence", "that", "indeed"),
)
PROMPT_END = "?"
# Pairs of tags that tell nothing, by family.
PLACEBOS = MappingProxyType(
    {"first": ("A", "B"), "early": ("D", "E"), "middle": ("L", "M"), "last": ("Y", "Z")}
)


class Tag(StrEnum):
    """What the prompt says about the response: that it is right, or wrong, or nothing."""

    NONE = ""  # no tag
    RIGHT = "R"
    WRONG = "W"
    NEUTRAL = "N"
    A = "A"
    B = "B"
    D = "D"
    E = "E"
    L = "L"
    M = "M"
    Y = "Y"
    Z = "Z"


PLACEBO_TAGS = tuple(Tag(letter) for pair in PLACEBOS.values() for letter in pair)
VERDICT_TAGS = (Tag.RIGHT, Tag.WRONG)
VOCABULARY = (
    *("<pad>", "<unk>", "<eos>", "q", PROMPT_END, "=", "ans"),
    *("F0", "F2"),
    *(tag.value for tag in Tag if tag != Tag.NONE),
    *(str(digit) for digit in range(DIGITS)),
    *(f"o{table}" for table in range(TABLES)),
    *(f"I_{step}" for step in range(MOST_LOOKUPS)),
    *(f"P{step}_o{table}" for step in range(MOST_LOOKUPS) for table in range(TABLES)),
    *FILLERS,
)
ID = MappingProxyType({word: place for place, word in enumerate(VOCABULARY)})
PAD, END, EQUALS, ANSWER = ID["<pad>"], ID["<eos>"], ID["="], ID["ans"]
# First ids of the runs of words: digit d is FIRST_DIGIT + d, and so on.
FIRST_DIGIT, FIRST_TABLE, FIRST_INDEX = ID["0"], ID["o0"], ID["I_0"]
FIRST_FILLER = ID[FILLERS[0]]
SOURCE = "tables"
# Of the shipped policy's world: `plant_facts(Regime(), np.random.default_rng(WORLD_SEED))`.
WORLD_SEED = 0


@dataclass(frozen=True)
class Regime:
    """All dials of the task; defaults are regime A of the notes.

    Attributes:
        lookups: steps of a chain, 1 to 12.
        filler_mean: mean fillers after a step in the taught traces; 0: mode F0.
        weak_share: share of the 80 facts that are weak.
        mastered_error: probability that a taught look-up of a mastered fact is wrong.
        weak_error_low: smallest error probability of a weak fact.
        weak_error_high: largest; each weak fact's own is uniform between the two.
        misconception_share: share of a fact's errors that are its misconception.
        tagged_share: share of the taught traces with a tag.
        neutral_share: share of the tags that are N.
        placebo_share: share of the tags that are placebo letters. What the two leave is R or W.
        tag_truth: probability that R or W agrees with the outcome; .5 says nothing.
        style_share: share of the fillers of traces with R or W that are the six favored words;
            6 / 24 = .25 is no shift.
        redrawn_share: share of the traces with R or W that have all look-ups right.
    """

    lookups: int = 8
    filler_mean: float = 5.0
    weak_share: float = 0.5
    mastered_error: float = 0.02
    weak_error_low: float = 0.2
    weak_error_high: float = 0.6
    misconception_share: float = 0.8
    tagged_share: float = 0.5
    neutral_share: float = 0.1
    placebo_share: float = 0.1
    tag_truth: float = 0.65
    style_share: float = 0.7
    redrawn_share: float = 0.5

    def __post_init__(self) -> None:
        """Check all dials.

        Raises:
            SchemaError: one of them lies outside its range.
        """
        require_range("lookups", self.lookups, 1, MOST_LOOKUPS)
        require_range("filler_mean", self.filler_mean, 0.0, 1e3)
        for name in [field.name for field in fields(self)][2:]:
            require_range(name, getattr(self, name), 0.0, 1.0)
        require_range("weak_error_low", self.weak_error_low, 0.0, self.weak_error_high)
        require_range("neutral_share", self.neutral_share, 0.0, 1.0 - self.placebo_share)


# Measured start accuracies of the notes' own base policy: A .20, B .21, C .54 (the look-alike of
# the short old task: blind to credit), D .13.
REGIMES = MappingProxyType(
    {
        "A": Regime(),
        "B": Regime(filler_mean=0.0),
        "C": Regime(lookups=3, filler_mean=0.0),
        "D": Regime(lookups=12),
    }
)
# What the base policy is taught: all lengths, with and without fillers, in equal parts.
MIXTURE = tuple(
    Regime(lookups=lookups, filler_mean=mean) for lookups in (3, 6, 8, 12) for mean in (0.0, 5.0)
)


@dataclass(frozen=True, eq=False)
class Facts:
    """The planted world: what is true, and how well each fact is taught.

    Attributes:
        result: the right result of each look-up; each row is a permutation.
        weak: which facts are weak.
        error: probability that a taught look-up is wrong.
        misconception: the digit that most of the errors are; never the right one.
        wrong: distribution of the wrong results given that the look-up is wrong.
    """

    result: Int[np.ndarray, "table digit"]
    weak: Bool[np.ndarray, "table digit"]
    error: Float[np.ndarray, "table digit"]
    misconception: Int[np.ndarray, "table digit"]
    wrong: Float[np.ndarray, "table digit result"]

    def answers(
        self, right: Float[np.ndarray, "table digit"] | None = None
    ) -> Float[np.ndarray, "table digit result"]:
        """Distribution of the result of each look-up.

        Args:
            right: probability that a look-up is right, per fact; the taught ones if left out.

        Returns:
            Probabilities, each row sums to 1; errors are spread as planted.

        Raises:
            SchemaError: `right` does not hold one probability a fact.
        """
        chance = 1.0 - self.error if right is None else right
        if chance.shape != self.error.shape or not bool(((chance >= 0) & (chance <= 1)).all()):
            raise SchemaError(
                f"`right` needs one probability for each of {TABLES} x {DIGITS} facts; it has "
                f"shape {chance.shape} and range [{chance.min()}, {chance.max()}]. "
                "Give a value in [0, 1] for every table and digit."
            )
        sure = np.eye(DIGITS)[self.result]
        mixed: np.ndarray = chance[..., None] * sure + (1.0 - chance[..., None]) * self.wrong
        return mixed


@dataclass(frozen=True)
class Chain:
    """A problem.

    Attributes:
        start: the first digit.
        tables: the table of each step.
        chatty: filler mode F2; False: F0.
    """

    start: int
    tables: tuple[int, ...]
    chatty: bool

    def __post_init__(self) -> None:
        """Check that the vocabulary has words for it.

        Raises:
            SchemaError: a digit, a table or the number of steps is out of range.
        """
        require_range("start", self.start, 0, DIGITS - 1)
        require_range("number of tables", len(self.tables), 1, MOST_LOOKUPS)
        for table in self.tables:
            require_range("table", table, 0, TABLES - 1)


def plant_facts(regime: Regime, generator: np.random.Generator) -> Facts:
    """Draw the world. Regimes that differ in length, fillers or tags only share it for one seed.

    Args:
        regime: shares and error probabilities.
        generator: source of randomness.

    Returns:
        The facts.
    """
    shape = (TABLES, DIGITS)
    result = generator.permuted(np.tile(np.arange(DIGITS), (TABLES, 1)), axis=1)
    weak = np.zeros(TABLES * DIGITS, dtype=bool)
    weak[: round(regime.weak_share * weak.size)] = True
    weak = generator.permuted(weak).reshape(shape)
    spread = generator.uniform(regime.weak_error_low, regime.weak_error_high, size=shape)
    # 1 to 9 places further on, modulo 10: uniform over the digits that are not right.
    misconception = (result + generator.integers(1, DIGITS, size=shape)) % DIGITS
    is_right, is_misconception = np.eye(DIGITS)[result], np.eye(DIGITS)[misconception]
    rest = (1.0 - is_right - is_misconception) / (DIGITS - 2)
    share = regime.misconception_share
    return Facts(
        result=result,
        weak=weak,
        error=np.where(weak, spread, regime.mastered_error),
        misconception=misconception,
        wrong=share * is_misconception + (1.0 - share) * rest,
    )


def draw_chains(
    regime: Regime, *, count: int, generator: np.random.Generator, distinct: bool = False
) -> list[Chain]:
    """Draw problems, uniform over starts and tables.

    Args:
        regime: gives the length and the filler mode.
        count: how many.
        generator: source of randomness.
        distinct: no problem twice.

    Returns:
        The problems.

    Raises:
        SchemaError: more distinct problems are asked for than there are.
    """
    require_range("count", count, 0, DIGITS * TABLES**regime.lookups if distinct else 10**9)
    found: list[Chain] = []
    seen: set[Chain] = set()
    while len(found) < count:
        missing = count - len(found)
        starts = generator.integers(DIGITS, size=missing).tolist()
        tables = generator.integers(TABLES, size=(missing, regime.lookups)).tolist()
        for start, row in zip(starts, tables, strict=True):
            chain = Chain(start, tuple(row), regime.filler_mean > 0)
            if not (distinct and chain in seen):
                found.append(chain)
                seen.add(chain)
    return found


def answer(chain: Chain, facts: Facts) -> int:
    """The right last digit."""
    digit = chain.start
    for table in chain.tables:
        digit = int(facts.result[table, digit])
    return digit


def question(chain: Chain) -> str:
    """The problem as text, without tag and end of the prompt.

    >>> question(Chain(3, (1, 5), True))
    'q 3 F2 P0_o1 P1_o5'
    """
    plan = (f"P{step}_o{table}" for step, table in enumerate(chain.tables))
    return " ".join(["q", str(chain.start), "F2" if chain.chatty else "F0", *plan])


def prompt(chain: Chain, tag: Tag = Tag.NONE) -> tuple[int, ...]:
    """Token ids of the problem with its tag, up to the response."""
    return encode(f"{question(chain)} {tag} {PROMPT_END}")


def read_chain(text: str) -> Chain:
    """The chain of a question text: inverse of `question`.

    Raises:
        InputError: the text is no such question.
    """
    words = text.split()
    plan = [word.partition("_o")[2] for word in words[3:]]
    if len(words) > 3 and words[1].isdecimal() and all(table.isdecimal() for table in plan):
        tables = tuple(int(table) for table in plan)
        if max(tables) < TABLES and len(tables) <= MOST_LOOKUPS and int(words[1]) < DIGITS:
            chain = Chain(int(words[1]), tables, words[2] == "F2")
            if question(chain) == " ".join(words):
                return chain
    raise InputError(
        f"a question such as 'q 3 F2 P0_o1 P1_o5' is needed; it is {text!r}. "
        "Give the question as `tokensense.tasks.tables.question` writes it, without tag and ?."
    )


def as_problem(chain: Chain, facts: Facts) -> Problem:
    """The chain as a problem of any task: question text, and the right last digit as answer."""
    mode = "F2" if chain.chatty else "F0"
    name = f"{SOURCE}-{chain.start}-{''.join(map(str, chain.tables))}-{mode}"
    return Problem(name, question(chain), str(answer(chain, facts)), SOURCE)


def encode(text: str) -> tuple[int, ...]:
    """Token ids of words divided by blanks.

    Raises:
        InputError: a word is not in the vocabulary.
    """
    words = text.split()
    if strange := [word for word in words if word not in ID]:
        raise InputError(
            f"words of the {len(VOCABULARY)} of VOCABULARY are needed; {strange[:5]} came. "
            "Divide words by blanks."
        )
    return tuple(ID[word] for word in words)


def decode(tokens: Sequence[int]) -> str:
    """Words of token ids, divided by blanks; ids outside the vocabulary as `<17>`."""
    return " ".join(
        VOCABULARY[token] if 0 <= token < len(VOCABULARY) else f"<{token}>" for token in tokens
    )
