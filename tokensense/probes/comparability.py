"""May a rollout under a condition be compared with the same rollout under its base?

Reads  the prompts of one problem (base and conditions), the rollouts of its group.
Gives  a `schema.Comparability` for each condition and rollout.

What is checked, and which verdict wins where several fail (in this order):
NOT_APPLICABLE   the text needs an answer that is not known.
TRUNCATED        prompt and response are longer than the policy's context (nothing is ever cut),
                 or the text did not reach the prompt: its ids are those of the base, or of a
                 condition with another text.
BOS              BOS is doubled at the start, or comes more or less often than in the base.
OPENER_DIFFERS   the ids right before the response (the generation prompt) are not the base's.
OWN_EXAMPLE      the inserted text holds the rollout's own response.
UNEQUAL_LENGTH   the two sides of a pair insert unequally many tokens for this problem (siblings
                 are of any length, and exempt).
The first two cannot be scored; the others are, and stay out of statistics by default.

Source: ecosystem 4.1, numbers 7, 9, 10, 11: siyan-zhao/OPSD#10 and huggingface/trl#6361 (opener),
trl#5990 (truncation), EleutherAI/lm-evaluation-harness#3333 (BOS).
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from jaxtyping import Int8

from tokensense.probes.conditions import Condition, pair_key
from tokensense.probes.shown import SIBLING
from tokensense.rollouts.trajectory import Encoder
from tokensense.schema import NO_LEVEL, Comparability

UNSCORED = (Comparability.NOT_APPLICABLE, Comparability.TRUNCATED)
# Shorter responses are bare answers, which the answer probe shows on purpose.
SHORTEST_EXAMPLE = 16
# Questions with other ends; two of them in digits, the words of a policy that knows no sentence.
UNLIKE = ("What is 2 + 3?", "Name a prime number", "1 + 2", "1 + 3")


class Limits(NamedTuple):
    """What a policy asks of every prompt.

    Attributes:
        opener: tokens of the generation prompt, the same for every question.
        bos_id: id of the beginning-of-text token, None where there is none.
        context_length: most tokens of prompt and response together.
    """

    opener: int
    bos_id: int | None
    context_length: int


class Prompt(NamedTuple):
    """A condition's prompt for one problem.

    Attributes:
        condition: the base, or one of a probe.
        text: what was inserted.
        ids: prompt ids up to the response; empty where the condition is not applicable.
    """

    condition: Condition
    text: str
    ids: tuple[int, ...]


class Response(NamedTuple):
    """What is needed of a rollout: its text and how many tokens it has."""

    text: str
    length: int


def limits(encoder: Encoder, *, bos_id: int | None) -> Limits:
    """Measure what every prompt of this policy must keep.

    Args:
        encoder: renders prompts.
        bos_id: id of the beginning-of-text token, None where there is none.

    Returns:
        The limits; `opener` counts the ids that end the prompts of unlike questions alike.
    """
    prompts = [encoder.render(question)[::-1] for question in UNLIKE]
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return Limits(sum(1 for _ in alike), bos_id, encoder.context_length)


def verdicts(
    base: Sequence[int],
    prompts: Sequence[Prompt],
    responses: Sequence[Response],
    *,
    limits: Limits,
) -> Int8[np.ndarray, "condition rollout"]:
    """Verdicts for one problem.

    Args:
        base: ids of the base prompt.
        prompts: one a condition; pairs are found among them.
        responses: one a rollout of the problem.
        limits: see `limits`.

    Returns:
        Values of `schema.Comparability`; dims (condition, rollout).
    """
    unequal, lost = _unequal_pairs(prompts), _lost_texts(base, prompts)
    found = np.zeros((len(prompts), len(responses)), np.int8)
    for i, prompt in enumerate(prompts):
        fault = _prompt_fault(base, prompt, limits)
        for j, response in enumerate(responses):
            if fault is Comparability.NOT_APPLICABLE:
                found[i, j] = fault
            elif i in lost or len(prompt.ids) + response.length > limits.context_length:
                found[i, j] = Comparability.TRUNCATED
            elif fault is not Comparability.OK:
                found[i, j] = fault
            elif _shows(prompt.text, response.text):
                found[i, j] = Comparability.OWN_EXAMPLE
            elif i in unequal:
                found[i, j] = Comparability.UNEQUAL_LENGTH
    return found


def _prompt_fault(base: Sequence[int], prompt: Prompt, limits: Limits) -> Comparability:
    """What is wrong with a prompt, whatever the response."""
    ids, bos = prompt.ids, limits.bos_id
    if not ids:
        return Comparability.NOT_APPLICABLE
    if bos is not None:
        starts = (ids[0] == bos) == (base[0] == bos)
        if not starts or ids[:2] == (bos, bos) or ids.count(bos) != list(base).count(bos):
            return Comparability.BOS
    if ids[len(ids) - limits.opener :] != tuple(base[len(base) - limits.opener :]):
        return Comparability.OPENER_DIFFERS
    return Comparability.OK


def _lost_texts(base: Sequence[int], prompts: Sequence[Prompt]) -> set[int]:
    """Places of the conditions whose text the prompt does not hold."""
    texts = {tuple(base): {""}}
    for prompt in prompts:
        texts.setdefault(prompt.ids, set()).add(prompt.text)
    return {
        place
        for place, prompt in enumerate(prompts)
        if prompt.text and prompt.ids and len(texts[prompt.ids]) > 1
    }


def _shows(text: str, response: str) -> bool:
    """Whether a text holds a whole response, white space aside."""
    own = " ".join(response.split())
    return len(own) >= SHORTEST_EXAMPLE and own in " ".join(text.split())


def _unequal_pairs(prompts: Sequence[Prompt]) -> set[int]:
    """Places of the conditions whose pair inserts unequally many tokens."""
    sides: dict[tuple[str, ...], list[int]] = {}
    for place, prompt in enumerate(prompts):
        paired = prompt.condition.level != NO_LEVEL and prompt.condition.family != SIBLING
        if paired and prompt.ids:
            sides.setdefault(pair_key(prompt.condition), []).append(place)
    return {
        place
        for pair in sides.values()
        if len({len(prompts[place].ids) for place in pair}) > 1
        for place in pair
    }
