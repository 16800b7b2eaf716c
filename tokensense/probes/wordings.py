"""Which words of the bank one tokenizer can use: pairs whose rendered prompts are equally long.

Reads  the bank's frames and candidate pairs, an Encoder.
Gives  the pairs to use, always the same for the same tokenizer.

Token counts are those of the whole rendered prompt, never of the word alone: a word may merge with
what stands beside it.

Source: methods/statistics.md B (edit-matched placebo pairs); huggingface/trl#5224 and
EleutherAI/lm-evaluation-harness#1053 are what counting words alone leads to.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from tokensense.errors import ConditionError
from tokensense.probes import bank
from tokensense.rollouts.trajectory import Encoder

# No shipped sentence touches the question, so one question stands for all.
QUESTION = "What is 2 + 3?"
# Where no number is asked for; all that the bank has where it has fewer.
USUAL_FRAMES, USUAL_FAMILIES = 6, 9

Counts = tuple[int, ...]


def filled(text: str, values: Mapping[str, str]) -> str:
    r"""Put values in the place of their {names}, in one pass.

    Args:
        text: a template.
        values: name -> what stands for it; not looked at again once it is in.

    Returns:
        The text; braces around other names and all backslashes are literal.

    Examples:
        >>> filled(r"\boxed{{a}} {b} {other}", {"a": "{b}", "b": r"\1"})
        '\\boxed{{b}} \\1 {other}'
    """
    names = "|".join(map(re.escape, values))
    return re.sub(r"\{(" + names + r")\}", lambda found: values[found[1]], text)


class Counter:
    """Prompt tokens of inserted texts under one tokenizer, each counted once; its bank.

    Raises:
        ConditionError: no bank has the encoder's `wordings`.
    """

    def __init__(self, encoder: Encoder) -> None:
        if encoder.wordings not in bank.BANKS:
            raise ConditionError(
                f"a probe needs `wordings` that are one of {sorted(bank.BANKS)}; those of "
                f"`{encoder.name}` are {encoder.wordings!r}. Correct the `tokensense.json` in its "
                "folder, or give conditions of your own."
            )
        self.encoder = encoder
        self.bank = bank.BANKS[encoder.wordings]
        self.known: dict[str, int] = {}

    def of(self, text: str) -> int:
        """Tokens of a rendered prompt with `text` inserted."""
        if text not in self.known:
            self.known[text] = len(self.encoder.render(QUESTION, insert=text))
        return self.known[text]

    def over(self, frames: Mapping[str, str], word: str) -> Counts:
        """Tokens of the prompt in each frame with the word in it."""
        return tuple(self.of(filled(text, {"word": word})) for text in frames.values())

    def listed(self, frames: Mapping[str, str], pairs: Iterable[bank.Pair]) -> str:
        """Pairs with the prompt tokens of each word, frame by frame, for a message."""
        return "; ".join(
            " / ".join(f"{w} {'+'.join(map(str, self.over(frames, w)))}" for w in pair)
            for pair in pairs
        )


def framed(encoder: Encoder, number: int | None) -> tuple[Counter, dict[str, str]]:
    """A policy's counter and the first of its frames; None for the usual number.

    Raises:
        ConditionError: it has no bank, or fewer frames.
    """
    counter = Counter(encoder)
    return counter, first_frames(counter.bank.frames, number)


def require_english(encoder: Encoder, probe: str) -> None:
    """Check that a policy can read whole sentences.

    Raises:
        ConditionError: it was taught nothing but tags; the message says which, and what to ask.
    """
    if encoder.wordings != bank.ENGLISH:
        own = Counter(encoder).bank
        tags = [filled(frame, {"word": own.verdicts[0][0]}) for frame in own.frames.values()]
        raise ConditionError(
            f"probe `{probe}` needs a policy that reads English; `{encoder.name}` knows nothing "
            f"but tags such as {tags}. Ask it for `opposed`, `placebo` or `neutral`."
        )


def first_frames(frames: Mapping[str, str], number: int | None) -> dict[str, str]:
    """The first frames of a set; None for the usual number.

    Raises:
        ConditionError: there are not so many.
    """
    number = min(USUAL_FRAMES, len(frames)) if number is None else number
    if not 1 <= number <= len(frames):
        raise ConditionError(
            f"a probe needs 1 to {len(frames)} of the frames {list(frames)}; {number} were asked "
            f"for. Ask for at most {len(frames)}, or give templates of your own."
        )
    return dict(list(frames.items())[:number])


def verdict_pairs(counter: Counter, frames: Mapping[str, str], number: int) -> list[bank.Pair]:
    """The first verdict pairs whose words are equally long in every frame.

    Raises:
        ConditionError: fewer than `number` are; the message names the pairs and their counts.
    """
    equal = [
        pair
        for pair in counter.bank.verdicts
        if counter.over(frames, pair[0]) == counter.over(frames, pair[1])
    ]
    if not 1 <= number <= len(equal):
        raise ConditionError(
            f"{number} verdict pairs of equal token count are needed; `{counter.encoder.name}` has "
            f"{len(equal)} of {len(counter.bank.verdicts)} (prompt tokens by frame): "
            f"{counter.listed(frames, counter.bank.verdicts)}. Ask for 1 to {max(len(equal), 1)} "
            "wordings."
        )
    return equal[:number]


def placebo_pairs(
    counter: Counter, frames: Mapping[str, str], number: int | None, *, wordings: int = 1
) -> list[tuple[str, bank.Pair]]:
    """Irrelevant pairs of equal token count, `wordings` from each of `number` families.

    `number` None: the usual.

    Families with a pair as long as the verdict's first pair come first, in the bank's order; then
    those with a pair of another length.

    Returns:
        (family, pair).

    Raises:
        ConditionError: fewer families have such a pair; the message names the pairs and their
            counts.
    """
    placebos = counter.bank.placebos
    number = min(USUAL_FAMILIES, len(placebos)) if number is None else number
    (verdict,) = verdict_pairs(counter, frames, 1)
    reference = counter.over(frames, verdict[0])
    equal: dict[str, list[tuple[bool, bank.Pair]]] = {}
    for family, pairs in placebos.items():
        for pair in pairs:
            first, second = (counter.over(frames, word) for word in pair)
            if first == second:
                equal.setdefault(family, []).append((first != reference, pair))
    # Pairs as long as the verdict's first, in a family and of the families.
    kept = {
        family: sorted(found, key=lambda one: one[0])[:wordings]
        for family, found in equal.items()
        if len(found) >= wordings
    }
    ranked = sorted(kept, key=lambda family: any(other for other, _ in kept[family]))
    if not 1 <= number <= len(ranked):
        failed = (p for f, pairs in placebos.items() if f not in kept for p in pairs)
        raise ConditionError(
            f"{number} placebo families of equal token count are needed; `{counter.encoder.name}` "
            f"has {len(ranked)} of {len(placebos)}. Unequal (prompt tokens by frame): "
            f"{counter.listed(frames, failed) or 'none'}. Ask for 1 to {max(len(ranked), 1)} "
            f"families."
        )
    return [(family, pair) for family in ranked[:number] for _, pair in kept[family]]


def neutral_words(counter: Counter, frames: Mapping[str, str], number: int) -> list[str]:
    """Words without a verdict that are as long as the verdict's first pair in every frame.

    Raises:
        ConditionError: fewer than `number` are.
    """
    (verdict,) = verdict_pairs(counter, frames, 1)
    reference = counter.over(frames, verdict[0])
    words = [w for w in counter.bank.neutral_words if counter.over(frames, w) == reference]
    if not 1 <= number <= len(words):
        raise ConditionError(
            f"{number} neutral words as long as `{verdict[0]}` are needed; "
            f"`{counter.encoder.name}` has {len(words)} of {list(counter.bank.neutral_words)}. Ask "
            f"for 1 to {max(len(words), 1)} wordings."
        )
    return words[:number]


def closest_pair(pairs: Sequence[bank.Pair], count: Mapping[str, int]) -> bank.Pair:
    """The first pair of equal count; where there is none, the first of those that differ least."""
    return min(pairs, key=lambda pair: abs(count[pair[0]] - count[pair[1]]))


def tone_pairs(counter: Counter, frames: Mapping[str, str]) -> tuple[bank.Pair, bank.Pair]:
    """Two praise / blame pairs whose words are as nearly as possible equally long in the frames."""

    def difference(slot: str, pair: bank.Pair) -> int:
        return sum(
            abs(
                counter.of(filled(text, {slot: pair[0]}))
                - counter.of(filled(text, {slot: pair[1]}))
            )
            for text in frames.values()
        )

    first = min(bank.TONES, key=lambda pair: difference("tone_1", pair))
    rest = [pair for pair in bank.TONES if pair != first]
    return first, min(rest, key=lambda pair: difference("tone_2", pair))
