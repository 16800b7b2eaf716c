"""Which characters, and which step, each token stands for.

Reads  the exact bytes of a response's tokens; the characters of its steps.
Gives  `Characters` (text, start, end) and the step of each token.

Tokens may cut a character in two, so places are counted in bytes and only then in characters: a
token touches every character that has one of its bytes. A token belongs to the step of its first
character that is not white space; white space between two steps belongs to the step before it; all
else outside the steps (a sampled end token) has step -1.

Source: own work; tokenizers#1628 and transformers#3058 say why a tokenizer's own offsets do not do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tokensense.schema import NO_STEP


class Characters(NamedTuple):
    """A text, and the characters [start, end) that each of its tokens touches."""

    text: str
    start: Int[np.ndarray, " token"]
    end: Int[np.ndarray, " token"]


def characters_of(pieces: Sequence[bytes]) -> Characters:
    """Decode token bytes and find the characters of each token.

    Args:
        pieces: exact bytes of each token of one response.

    Returns:
        The text (a byte that is not part of UTF-8 is one character, a surrogate as Python's
        `surrogateescape` gives it) and characters [start, end) of each token; tokens that share a
        character overlap, a token without bytes has start = end.
    """
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    width = 1 + (code >= 0x80).astype(np.int64) + (code >= 0x800) + (code >= 0x10000)
    width[(code >= 0xDC80) & (code <= 0xDCFF)] = 1  # surrogateescape: an invalid byte
    last_byte = np.cumsum(width)
    bound = np.cumsum([0, *map(len, pieces)])
    start = np.searchsorted(last_byte, bound[:-1], side="right")
    end = np.searchsorted(last_byte, bound[1:] - 1, side="right") + 1
    return Characters(text, start, np.where(bound[1:] > bound[:-1], end, start))


def steps_of(
    characters: Characters, bounds: Int[np.ndarray, "step 2"]
) -> Int[np.ndarray, " token"]:
    """Step of each token.

    Args:
        characters: the text and the characters of each token.
        bounds: characters [start, end) of each step, in order and without overlap, at least one.

    Returns:
        Index of the step that holds each token, -1 where none does; dims (token,).
    """
    size = len(characters.text)
    if not size:
        return np.full(len(characters.start), NO_STEP)
    place = np.arange(size)
    dark = np.array([not character.isspace() for character in characters.text], bool)
    # For each character: the next dark one at or after it, and the last dark one at or before it.
    following = np.minimum.accumulate(np.where(dark, place, size)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(dark, place, -1))
    start = np.minimum(characters.start, size - 1)  # a token without bytes may stand at the end
    first = np.where(following[start] < characters.end, following[start], start)
    step = np.searchsorted(bounds[:, 0], first, side="right") - 1
    closes = bounds[step, 1]
    held = (first < closes) | (~dark[first] & (preceding[first] < closes))
    return np.where((step >= 0) & held & (characters.end > characters.start), step, NO_STEP)
