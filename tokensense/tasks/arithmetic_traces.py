"""Written solutions of chains: varied in style, some with one injected error, some with a tag.

Reads  a random generator, `Chains` (sizes), `Tags` (what tags tell).
Gives  Example: question, tag, words of the solution, and where the injected error lies.

A solution has one sentence a step, `connective [,] [fillers] a op b equality r separator`, then
`phrase [:] n` or `[ n ]`, and the end token. In `error_rate` of them one step, drawn uniformly,
has a wrong result (1, 2 or 10 off, or that of another operator); later steps carry it on, so the
final number is wrong. Steps whose errors would all leave 0..99 later (some factors) give way to
the next one that has one.

Tags: a verdict (`right`, `wrong`; `good`, `bad`) tells the outcome with chance `truth`, else it is
drawn without looking, in the same shares. Its traces are terse with chance `style`: fixed words,
brackets, hardly a filler. Neutral and irrelevant words tell nothing and change nothing: they
separate what a tag says from its being there. First word and wording are uniform.

Source: own task, after `notes/tinymodel.md` section 0, traps 3 and 6. Departures: several words for
the same tag, so that probes can cross them; `mixed` tells the outcome more often than the notes'
0.3, of which a policy trained from scratch had learned nothing after 64,000 examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokensense.checks import require_range
from tokensense.errors import SchemaError
from tokensense.tasks.arithmetic import (
    ANSWER_PHRASES,
    BRACKETS,
    COLON,
    COMMA,
    CONNECTIVES,
    END,
    EQUALITIES,
    FILLERS,
    LARGEST,
    LEADS,
    MINUS,
    NEUTRALS,
    NO_ERROR,
    NUMBERS,
    OPENERS,
    PLACEBO_WORDS,
    PLUS,
    PROMPT_END,
    SEPARATORS,
    TIMES,
    VERDICT_WORDS,
    VERDICTS,
    Chain,
    Chains,
    Step,
    Uniform,
    apply,
    draw_chain,
    solve,
    uniforms,
)

MOST_FILLERS = 8
OFFSETS = (-10, -2, -1, 1, 2, 10)
CONFUSED_WITH = {PLUS: MINUS, MINUS: PLUS, TIMES: PLUS}


@dataclass(frozen=True)
class Tags:
    """What stands between a question and the end of its prompt, and what it tells.

    Attributes:
        share: of examples with a tag; as it is, half of all examples have a verdict.
        truth: chance that a verdict tells the outcome; else it is drawn without looking.
        style: chance that an example with a verdict is terse.
        neutral: share of the tags that say a neutral word.
        irrelevant: share of the tags that say a placebo word.

    Raises:
        SchemaError: a share lies outside [0, 1], or neutral and irrelevant exceed 1 together.
    """

    share: float = 0.625
    truth: float = 0.0
    style: float = 0.0
    neutral: float = 0.1
    irrelevant: float = 0.1

    def __post_init__(self) -> None:
        for name in ("share", "truth", "style", "neutral", "irrelevant"):
            require_range(name, getattr(self, name), 0.0, 1.0)
        if self.neutral + self.irrelevant > 1.0:
            raise SchemaError(
                "`neutral` and `irrelevant` need a sum of at most 1; it is "
                f"{self.neutral + self.irrelevant}. What they leave are verdicts."
            )


# `mixed` is one rung of the ladder Tags(truth=0 ... 1, style=0.8).
TAGGINGS = {
    "truthful": Tags(truth=1.0),
    "style": Tags(style=0.8),
    "mixed": Tags(truth=0.6, style=0.8),
    "placebo": Tags(),
}


class Example(NamedTuple):
    """One question with one written solution.

    Attributes:
        chain: the problem.
        tag: first word and what it says, empty without a tag.
        words: the solution, words of VOCABULARY, the end token last.
        wrong_step: index of the step with the injected error, -1 without one.
        wrong_token: index in `words` of the first token that differs from the right solution: a
            digit of the wrong result, or the separator where the result lacks a digit; -1 for none.
    """

    chain: Chain
    tag: tuple[str, ...]
    words: list[str]
    wrong_step: int
    wrong_token: int

    @property
    def prompt(self) -> list[str]:
        """Words before the solution: question, tag, and the end of the prompt."""
        return [*self.chain.question.split(), *self.tag, PROMPT_END]

    @property
    def right(self) -> bool:
        """Whether the solution ends on the right number."""
        return self.wrong_step == NO_ERROR


class _Style(NamedTuple):
    """How one trace is worded: pools to draw from, and chances."""

    openers: tuple[str, ...]
    connectives: tuple[str, ...]
    equalities: tuple[str, ...]
    separators: tuple[str, ...]
    comma: float
    filler: float
    brackets: bool


def _pool(words: tuple[str, ...], favorite: int) -> tuple[str, ...]:
    """A pool in which one word has 4 times the share of each other one."""
    return words + 3 * (words[favorite],)


_VERDICTS = frozenset(VERDICT_WORDS)
_EQUALITIES = tuple(_pool(EQUALITIES, place) for place in range(len(EQUALITIES)))
_SEPARATORS = tuple(_pool(SEPARATORS, place) for place in range(len(SEPARATORS)))
_TERSE = _Style(
    openers=OPENERS[:1],
    connectives=CONNECTIVES[:1],
    equalities=("gives",),
    separators=(";",),
    comma=0.0,
    filler=0.02,
    brackets=True,
)


def examples(
    rng: np.random.Generator,
    *,
    count: int,
    chains: Chains | None = None,
    tags: Tags | None = None,
) -> Iterator[Example]:
    """Draw questions with written solutions.

    Args:
        rng: the same state gives the same examples, whether asked for at once or in parts. Chains
            and injected errors do not depend on `tags`.
        count: how many.
        chains: sizes and shares; None for the defaults.
        tags: what tags tell; None for tags without any effect (`placebo`).

    Yields:
        Examples; questions may repeat.
    """
    chains, tags = chains or Chains(), tags or Tags()
    for _ in range(count):
        yield _example(uniforms(rng, chains.draws), chains, tags)


def _example(uniform: Uniform, chains: Chains, tags: Tags) -> Example:
    chain = draw_chain(uniform, chains)
    true = steps = solve(chain)
    errs, which, turn = uniform() < chains.error_rate, uniform(), uniform()
    wrong_step = NO_ERROR
    if errs:
        wrong_step, steps = _with_error(chain, true, int(which * len(true)), turn=turn)
    tag = _tag(uniform, tags, right=not errs, error_rate=chains.error_rate)
    terse = uniform() < tags.style and not _VERDICTS.isdisjoint(tag)
    style = _free_style(uniform, chains)
    words, results = _written(steps, _TERSE if terse else style, uniform)
    wrong_token = NO_ERROR
    if errs:
        shared = _shared(NUMBERS[true[wrong_step].result], NUMBERS[steps[wrong_step].result])
        wrong_token = results[wrong_step] + shared
    return Example(chain, tag, words, wrong_step, wrong_token)


def _with_error(
    chain: Chain, true: list[Step], first: int, *, turn: float
) -> tuple[int, list[Step]]:
    """The solution with a wrong result at step `first`, or at the next step that can have one.

    `turn` in [0, 1) says with which of the possible wrong results to begin.
    """
    for wrong in (*range(first, len(true)), *range(first)):
        left, operator, right, result = true[wrong]
        confused = apply(left, CONFUSED_WITH[operator], right)
        options = {*(result + offset for offset in OFFSETS), confused} - {result}
        possible = sorted(value for value in options if 0 <= value <= LARGEST)
        start = int(turn * len(possible))
        for value in possible[start:] + possible[:start]:
            steps = solve(chain, wrong_step=wrong, wrong_result=value)
            if all(0 <= step.result <= LARGEST for step in steps):
                return wrong, steps
    raise AssertionError(f"the last step of {chain} can be one off")


def _tag(uniform: Uniform, tags: Tags, *, right: bool, error_rate: float) -> tuple[str, ...]:
    """The words of the tag. Always six draws, so that all tags see the same."""
    tagged, lead, sort, wording = uniform(), uniform(), uniform(), uniform()
    tells, side = uniform(), uniform()
    if tagged >= tags.share:
        return ()
    if sort < tags.neutral:
        word = NEUTRALS[int(wording * len(NEUTRALS))]
    elif sort < tags.neutral + tags.irrelevant:
        word = PLACEBO_WORDS[int(side * len(PLACEBO_WORDS))]
    else:
        says_right = right if tells < tags.truth else side >= error_rate
        word = VERDICTS[int(wording * len(VERDICTS))][0 if says_right else 1]
    return LEADS[int(lead * len(LEADS))], word


def _free_style(uniform: Uniform, chains: Chains) -> _Style:
    """Any words, with a favorite equality and separator, and the trace's own rate of fillers."""
    return _Style(
        openers=OPENERS,
        connectives=CONNECTIVES,
        equalities=_EQUALITIES[int(uniform() * len(EQUALITIES))],
        separators=_SEPARATORS[int(uniform() * len(SEPARATORS))],
        comma=0.5,
        filler=chains.fillers[int(uniform() * len(chains.fillers))],
        brackets=uniform() < 1 / 3,
    )


def _written(steps: list[Step], style: _Style, uniform: Uniform) -> tuple[list[str], list[int]]:
    """Words of a solution, and where the result of each step begins."""
    words: list[str] = []
    results: list[int] = []
    add = words.append
    connectives = style.openers
    for left, operator, right, result in steps:
        add(connectives[int(uniform() * len(connectives))])
        connectives = style.connectives
        if uniform() < style.comma:
            add(COMMA)
        for _ in range(_fillers(uniform(), style.filler)):
            add(FILLERS[int(uniform() * len(FILLERS))])
        words += NUMBERS[left]
        add(operator)
        words += NUMBERS[right]
        add(style.equalities[int(uniform() * len(style.equalities))])
        results.append(len(words))
        words += NUMBERS[result]
        add(style.separators[int(uniform() * len(style.separators))])
    answer = NUMBERS[steps[-1].result]
    if style.brackets:
        words += (BRACKETS[0], *answer, BRACKETS[1])
    else:
        add(ANSWER_PHRASES[int(uniform() * len(ANSWER_PHRASES))])
        if uniform() < style.comma:
            add(COLON)
        words += answer
    add(END)
    return words, results


def _fillers(draw: float, chance: float) -> int:
    """How many fillers a draw in [0, 1) stands for: k or more with probability chance^k."""
    count, tail = 0, chance
    while draw < tail and count < MOST_FILLERS:
        count += 1
        tail *= chance
    return count


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Digits that two numbers have in common at their beginning."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
