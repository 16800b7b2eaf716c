"""Taught traces of table chains: what the base policy of `tables` learns before any reward.

Reads  the world (Facts), dials (Regime) and problems (Chain) of `tables`; a NumPy generator.
Gives  Example: a trace whose look-ups are as good as the facts are taught, with its tag.

A tag R or W agrees with the outcome more often than not, and some of the traces that have one are
re-drawn with all look-ups right, so that these tags also raise accuracy. Such traces favor six of
the filler words as well: an effect of style that has nothing to do with the outcome. N and placebo
letters go with traces as without a tag. Fillers after a step are geometric in number, from 0 on.

Source: shared/notes/assay.md, section 1. The notes leave open, and here it is so: the 30 % of the
fillers of such a trace that are not from the six favored words are uniform over the other 18, and
`right`, for tags, is the reward: right by luck counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Shaped

from tokensense.errors import SchemaError
from tokensense.tasks.tables import (
    ANSWER,
    END,
    EQUALS,
    FILLERS,
    FIRST_DIGIT,
    FIRST_FILLER,
    FIRST_INDEX,
    FIRST_TABLE,
    PLACEBO_TAGS,
    STYLE_WORDS,
    VERDICT_TAGS,
    Chain,
    Facts,
    Regime,
    Tag,
    answer,
)


@dataclass(frozen=True)
class Example:
    """A taught trace.

    Attributes:
        chain: the problem.
        tag: what the prompt says about it.
        response: token ids, end token included.
        right: the last digit is the right one, by luck or not.
    """

    chain: Chain
    tag: Tag
    response: tuple[int, ...]
    right: bool


def draw_examples(
    facts: Facts, regime: Regime, *, chains: Sequence[Chain], generator: np.random.Generator
) -> list[Example]:
    """Draw one taught trace a problem: look-ups as well as the facts are taught, then a tag.

    Args:
        facts: the world.
        regime: fillers and tags; the length is that of the chains.
        chains: problems of one length; repeat them for several traces of one.
        generator: source of randomness.

    Returns:
        One example a chain, in order.

    Raises:
        SchemaError: the chains differ in length.
    """
    if len({len(chain.tables) for chain in chains}) > 1:
        lengths = sorted({len(chain.tables) for chain in chains})
        raise SchemaError(f"chains of one length are needed; they have {lengths}. Draw each apart.")
    if not chains:
        return []
    n = len(chains)
    tags = _draw_idle_tags(regime, count=n, generator=generator)
    judged = np.isin(tags, VERDICT_TAGS)
    redrawn = judged & (generator.random(n) < regime.redrawn_share)
    digits = _draw_digits(facts, chains, redrawn=redrawn, generator=generator)
    right = digits[:, -1] == [answer(chain, facts) for chain in chains]
    agrees = generator.random(n) < regime.tag_truth
    tags = np.where(judged, np.where(right == agrees, *VERDICT_TAGS), tags)
    fillers = _draw_fillers(regime, chains, judged=judged, generator=generator)
    return [
        Example(chain, Tag(tag), _response(chain, row, fillers=words), outcome)
        for chain, tag, row, words, outcome in zip(
            chains, tags.tolist(), digits.tolist(), fillers, right.tolist(), strict=True
        )
    ]


def _draw_idle_tags(
    regime: Regime, *, count: int, generator: np.random.Generator
) -> Shaped[np.ndarray, " example"]:
    """Tags of all examples; R stands where the outcome will decide between R and W."""
    shares = (regime.neutral_share, regime.placebo_share)
    sort = generator.choice(3, size=count, p=[*shares, 1.0 - sum(shares)])
    letters = generator.choice(PLACEBO_TAGS, size=count)
    tags = np.select([sort == 0, sort == 1], [Tag.NEUTRAL, letters], Tag.RIGHT)
    tagged = generator.random(count) < regime.tagged_share
    return np.where(tagged, tags, Tag.NONE)


def _draw_digits(
    facts: Facts,
    chains: Sequence[Chain],
    *,
    redrawn: Bool[np.ndarray, " example"],
    generator: np.random.Generator,
) -> Int[np.ndarray, "example digit"]:
    """Start digit, then the result of each step; `redrawn` examples make no error."""
    tables = np.array([chain.tables for chain in chains])
    # The last bound is 1 up to rounding: comparing with the others only never gives a digit of 10.
    bounds = np.cumsum(facts.answers(), axis=-1)[..., :-1]
    digits = [np.array([chain.start for chain in chains])]
    for step in range(tables.shape[1]):
        table, digit = tables[:, step], digits[-1]
        drawn = (generator.random(len(chains))[:, None] >= bounds[table, digit]).sum(axis=1)
        digits.append(np.where(redrawn, facts.result[table, digit], drawn))
    return np.stack(digits, axis=1)


def _draw_fillers(
    regime: Regime,
    chains: Sequence[Chain],
    *,
    judged: Bool[np.ndarray, " example"],
    generator: np.random.Generator,
) -> list[list[list[int]]]:
    """Token ids of the fillers after each step of each example."""
    shape = (len(chains), len(chains[0].tables))
    chatty = np.array([chain.chatty for chain in chains])
    # Geometric from 0 on: no memory, so that a policy needs no counter to write it.
    counts = generator.geometric(1.0 / (1.0 + regime.filler_mean), size=shape) - 1
    counts = counts * chatty[:, None]
    total = int(counts.sum())
    of_judged = np.repeat(judged, counts.sum(axis=1))
    favored = generator.random(total) < regime.style_share
    words = np.where(
        of_judged,
        np.where(
            favored,
            generator.integers(STYLE_WORDS, size=total),
            generator.integers(STYLE_WORDS, len(FILLERS), size=total),
        ),
        generator.integers(len(FILLERS), size=total),
    )
    flat = (FIRST_FILLER + words).tolist()
    ends = np.cumsum(counts.ravel()).reshape(shape).tolist()
    begins = (np.cumsum(counts.ravel()) - counts.ravel()).reshape(shape).tolist()
    return [
        [flat[low:high] for low, high in zip(*rows, strict=True)]
        for rows in zip(begins, ends, strict=True)
    ]


def _response(chain: Chain, digits: list[int], *, fillers: list[list[int]]) -> tuple[int, ...]:
    """Token ids of a trace with these results, one more digit than steps."""
    tokens: list[int] = []
    for step, table in enumerate(chain.tables):
        before, after = FIRST_DIGIT + digits[step], FIRST_DIGIT + digits[step + 1]
        tokens += (FIRST_INDEX + step, FIRST_TABLE + table, before, EQUALS, after)
        tokens += fillers[step]
    return (*tokens, ANSWER, FIRST_DIGIT + digits[-1], END)
