"""Conditions: what a policy is told before it scores a frozen response; the shipped probes.

Reads  the sentences of `bank` that a policy can be told, an Encoder (token counts of prompts).
Gives  Condition, insert_text, and builders of conditions: words in sentences. `shown` has those
       that show the policy something of the problem or of its group; CATALOGUE lists all.
Sign   level `pos` is the favorable side (correct, praise is its tone, right answer), `neg` the
       other; for a placebo the first word is `pos` and that means nothing.

A pair (conditions equal in family, frame, wording and placement, one `pos`, one `neg`) differs in
one word and inserts equally many tokens; word pairs for which that fails under the given tokenizer
are passed over, and the builder refuses when too few are left. `base`, the context without any
insertion, is never part of a probe: it has a node of its own.

Source: methods/statistics.md B and 3.4 (frames crossed with one-word pairs, placebo families),
cscr.md 1.2 and 5.6 (published pair, outcome x tone). Departure: the
published pair is paraphrased and edit-minimal.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from tokensense.errors import ConditionError
from tokensense.probes import bank
from tokensense.probes.wordings import (
    Counter,
    closest_pair,
    filled,
    first_frames,
    framed,
    neutral_words,
    placebo_pairs,
    require_english,
    tone_pairs,
    verdict_pairs,
)
from tokensense.rollouts.trajectory import Encoder
from tokensense.schema import BASE, NEGATIVE, NO_LEVEL, POSITIVE, VERDICT

LEVELS = (POSITIVE, NEGATIVE, NO_LEVEL)
PLACEMENTS = ("user_end", "user_start", "system")
NONE = "none"
PRAISE, BLAME = "praise", "blame"
Count = int | None  # None: the usual number
# What is known of a problem, by the name that stands for it in a text.
KNOWN = (
    "question",
    "answer",
    "wrong_answer",
    "solution",
    "right_1",
    "right_2",
    "wrong_1",
    "wrong_2",
)
_PLACEHOLDER = re.compile(r"\{(" + "|".join((*KNOWN, "word")) + r")\}")


@dataclass(frozen=True)
class Condition:
    """A named change of the context of a rollout.

    Attributes:
        name: of the condition, without blanks.
        text: what is inserted. {word} and the names of `KNOWN` in braces are replaced, once;
            everything else is literal. "" is the base.
        family: what the edited word is about: verdict, a placebo family, neutral, answer.
        level: the word's side: pos, neg, or none.
        frame: the sentence around the word.
        wording: the word pair.
        tone: praise, blame, or none; the text's, whatever the level.
        placement: user_end, user_start or system.
        word: stands for {word} in `text`; "" where the text has none.
    """

    name: str
    text: str
    family: str
    level: str
    frame: str
    wording: str
    tone: str = NONE
    placement: str = "user_end"
    word: str = ""


BASE_CONDITION = Condition(BASE, "", BASE, NO_LEVEL, NONE, NONE)


class Builder(Protocol):
    """Makes a probe's conditions for one tokenizer; sizes it has no use for are ignored."""

    def __call__(
        self, encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
    ) -> tuple[Condition, ...]:
        """Conditions of the probe, in a fixed order.

        Args:
            encoder: the policy that will score.
            frames: sentences around each word; None for 6, or all of fewer.
            families: irrelevant word pairs; None for 9, or all of fewer.
            wordings: word pairs of the verdict, and of each placebo family.

        Raises:
            ConditionError: the bank has fewer, the tokenizer leaves fewer of equal token count, or
                the policy does not read English and the probe needs it.
        """
        ...


def insert_text(condition: Condition, known: Mapping[str, str | None]) -> str | None:
    r"""What a condition inserts for one problem.

    Args:
        condition: whose text.
        known: what stands for the names of `KNOWN`; None, or not there: not known.

    Returns:
        The text, after one pass over it: what was put in is not looked at again, and braces and
        backslashes are themselves. None where the text needs what is not known.

    Examples:
        >>> shown = Condition("a", r"Box: \boxed{{answer}} {x}", "answer", "pos", "box", "given")
        >>> insert_text(shown, {"answer": r"{word}\1"})
        'Box: \\boxed{{word}\\1} {x}'
    """
    values = {**known, "word": condition.word}
    if any(values.get(name) is None for name in _PLACEHOLDER.findall(condition.text)):
        return None
    return filled(condition.text, {name: value or "" for name, value in values.items()})


def shown_text(condition: Condition) -> str:
    """The text with its word in it, for people; what depends on the problem stays as {name}."""
    return filled(condition.text, {"word": condition.word}) if condition.word else condition.text


def pair_key(condition: Condition) -> tuple[str, str, str, str]:
    """What the sides of a pair have in common; with tones, the cells of a factorial."""
    return condition.family, condition.frame, condition.wording, condition.placement


def require_conditions(probe: str, conditions: Sequence[Condition]) -> None:
    """Check a probe before it is scored.

    Raises:
        ConditionError: there is no condition; a name is there twice or is that of the base; a text
            is empty; or the levels of a pair are not one `pos` and one `neg` (one each a tone).
    """
    if not conditions:
        raise ConditionError(
            f"probe `{probe}` needs at least one condition; it has none. Name another probe, or "
            "give conditions."
        )
    names = [condition.name for condition in conditions]
    for condition in conditions:
        blank = not condition.text.strip()
        if condition.name == BASE or names.count(condition.name) > 1 or blank:
            raise ConditionError(
                f"each condition of probe `{probe}` needs a name of its own, not `{BASE}`, and a "
                f"text; `{condition.name}` is there {names.count(condition.name)} times, with the "
                f"text {condition.text!r}. The base is scored without being asked for."
            )
    sides: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for condition in conditions:
        if condition.level != NO_LEVEL:
            tones = sides.setdefault(pair_key(condition), {POSITIVE: [], NEGATIVE: []})
            tones[condition.level].append(condition.tone)
    for key, tones in sides.items():
        first, second = (sorted(tones[level]) for level in (POSITIVE, NEGATIVE))
        alone = len(first) == len(second) == 1
        if not alone and (first != second or len(set(first)) < len(first)):
            raise ConditionError(
                f"probe `{probe}` needs one `pos` and one `neg` in each family, frame, wording and "
                f"placement (one each a tone); {'/'.join(key)} has pos in tones {first} and neg in "
                f"{second}. Add the missing side, or give level `none`."
            )


def opposed(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """The verdict: one word says that the solution to come is correct, or that it is wrong.

    Args:
        encoder: whose tokenizer.
        frames: sentences; the English bank has 8.
        families: not used.
        wordings: word pairs; the English bank has 8, and the first is correct / wrong.

    Returns:
        Conditions wording by wording, frame by frame, `pos` before `neg`.

    Raises:
        ConditionError: too few frames or pairs of equal token count.
    """
    del families
    counter, chosen = framed(encoder, frames)
    pairs = verdict_pairs(counter, chosen, wordings)
    return _crossed([(VERDICT, pair) for pair in pairs], chosen)


def placebo(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """Irrelevant words in the verdict's own frames: a day, a color, a place.

    Args:
        encoder: whose tokenizer.
        frames: sentences; the first ones, as for `opposed`.
        families: word pairs, each of another family; the English bank has 27.
        wordings: word pairs of each family; the English bank has 2 or 3.

    Returns:
        Conditions family by family, pair by pair, frame by frame, `pos` before `neg`. Families
        whose words are as long as the verdict's come first.

    Raises:
        ConditionError: fewer than `families` have a pair of equal token count; it lists the counts.
    """
    counter, chosen = framed(encoder, frames)
    return _crossed(placebo_pairs(counter, chosen, families, wordings=wordings), chosen)


def neutral(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """The same frames with a word that gives no verdict, as long as the verdict's word.

    Args:
        encoder: whose tokenizer.
        frames: sentences, as for `opposed`.
        families: not used.
        wordings: words; the English bank has 6.

    Returns:
        Conditions word by word, frame by frame; level `none`.

    Raises:
        ConditionError: too few frames, or words as long as the verdict's.
    """
    del families
    counter, chosen = framed(encoder, frames)
    words = neutral_words(counter, chosen, wordings)
    return tuple(
        Condition(
            f"neutral_{word}_{frame}",
            filled(text, {"word": word}),
            "neutral",
            NO_LEVEL,
            frame,
            word,
        )
        for word, (frame, text) in product(words, chosen.items())
    )


def published(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """A paragraph that says correct and praises, and its twin that says wrong and blames.

    As in the published pair, outcome and tone are confounded: `outcome_tone` takes them apart. The
    paragraph is our own; the twins differ word by word, each word pair of equal token count where
    the tokenizer has one (where it has none, the pair is marked `unequal_length`).

    Args:
        encoder: whose tokenizer.
        frames: not used: there is one paragraph.
        families: not used.
        wordings: not used.

    Returns:
        Two conditions, `pos` (praise) and `neg` (blame); a policy without English is refused.
    """
    del frames, families, wordings
    require_english(encoder, "published")
    counter = Counter(encoder)
    slots: dict[str, Sequence[bank.Pair]] = {"word": bank.VERDICTS, **bank.PUBLISHED_SLOTS}
    first = {name: pairs[0][0] for name, pairs in slots.items()}
    chosen: dict[str, bank.Pair] = {}
    for name, pairs in slots.items():
        texts = {w: filled(bank.PUBLISHED, {**first, name: w}) for pair in pairs for w in pair}
        chosen[name] = closest_pair(pairs, {w: counter.of(text) for w, text in texts.items()})
    return tuple(
        Condition(
            f"published_{level}",
            filled(bank.PUBLISHED, {name: pair[side] for name, pair in chosen.items()}),
            VERDICT,
            level,
            "paragraph",
            "published",
            tone=(PRAISE, BLAME)[side],
        )
        for side, level in enumerate((POSITIVE, NEGATIVE))
    )


def outcome_tone(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """Outcome {correct, wrong} x tone {praise, blame}: the factorial behind the published pair.

    Args:
        encoder: whose tokenizer.
        frames: sentences, 1 to 6.
        families: not used.
        wordings: verdict word pairs, 1 to 8.

    Returns:
        Four conditions a frame and wording: `level` is the outcome, `tone` the tone. Main effect of
        the outcome: mean of pos - neg over tones; of the tone: praise - blame over levels.

    Raises:
        ConditionError: too few frames or verdict pairs of equal token count, or no English.
    """
    del families
    require_english(encoder, "outcome_tone")
    chosen = first_frames(bank.OUTCOME_FRAMES, frames)
    counter = Counter(encoder)
    toned: dict[str, dict[str, str]] = {}
    for side, tone in enumerate((PRAISE, BLAME)):
        words = {f"tone_{i + 1}": pair[side] for i, pair in enumerate(tone_pairs(counter, chosen))}
        toned[tone] = {frame: filled(text, words) for frame, text in chosen.items()}
    pairs = verdict_pairs(counter, toned[PRAISE], wordings)
    return tuple(
        Condition(
            f"{VERDICT}_{'_'.join(pair)}_{frame}_{level}_{tone}",
            filled(toned[tone][frame], {"word": pair[side]}),
            VERDICT,
            level,
            frame,
            "_".join(pair),
            tone=tone,
        )
        for pair, frame, tone in product(pairs, chosen, toned)
        for side, level in enumerate((POSITIVE, NEGATIVE))
    )


def _crossed(
    families: Iterable[tuple[str, bank.Pair]], frames: Mapping[str, str]
) -> tuple[Condition, ...]:
    """Every pair in every frame."""
    return tuple(
        Condition(
            f"{family}_{'_'.join(pair)}_{frame}_{level}",
            filled(text, {"word": pair[side]}),
            family,
            level,
            frame,
            "_".join(pair),
        )
        for family, pair in families
        for frame, text in frames.items()
        for side, level in enumerate((POSITIVE, NEGATIVE))
    )
