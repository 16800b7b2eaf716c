from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.rollouts.alignment import characters_of, steps_of


def plain_characters(pieces):
    """Slow reference: the characters of a token are those with one of its bytes."""
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    owner = [i for i, c in enumerate(text) for _ in c.encode("utf-8", "surrogateescape")]
    spans, place = [], 0
    for piece in pieces:
        held = owner[place : place + len(piece)]
        spans.append((held[0], held[-1] + 1) if held else None)
        place += len(piece)
    return text, spans


def plain_step(text, span, bounds):
    """Slow reference of the rule in the module's head."""
    if span is None:
        return -1
    inside = [i for i in range(*span) if not text[i].isspace()]
    place = inside[0] if inside else span[0]
    for step, (start, end) in enumerate(bounds):
        if start <= place < end:
            return step
    before = [step for step, (start, _) in enumerate(bounds) if start <= place]
    if before and text[bounds[before[-1]][1] : place + 1].isspace():
        return before[-1]
    return -1


@st.composite
def cut_bytes(draw):
    raw = draw(
        st.one_of(st.text(max_size=20).map(lambda t: t.encode("utf-8")), st.binary(max_size=20))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    bounds = [0, *cuts, len(raw)]
    return [raw[a:b] for a, b in pairwise(bounds)]


@st.composite
def cut_steps(draw):
    text = draw(st.text(alphabet="ab \né😀", max_size=20))
    raw = text.encode("utf-8")
    cuts = [0, *sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12))), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(cuts)]
    ends = sorted(draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=8)))
    ends = ends[: len(ends) // 2 * 2]
    return pieces, list(zip(ends[::2], ends[1::2], strict=True))


@given(cut_bytes())
def test_characters_equal_the_plain_reference(pieces):
    found = characters_of(pieces)
    text, spans = plain_characters(pieces)
    assert found.text == text
    for start, end, span in zip(found.start.tolist(), found.end.tolist(), spans, strict=True):
        assert (start, end) == span if span else start == end


def test_characters_at_the_borders_of_utf_8_lengths():
    text = "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"
    found = characters_of([bytes([b]) for b in text.encode()])
    assert found.start.tolist() == [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6]


@given(cut_steps())
def test_steps_equal_the_plain_reference(case):
    pieces, bounds = case
    text, spans = plain_characters(pieces)
    found = steps_of(characters_of(pieces), np.array(bounds, np.int64))
    assert found.tolist() == [plain_step(text, span, bounds) for span in spans]


def test_a_character_cut_in_two_belongs_to_both_tokens():
    grin = "😀".encode()
    found = characters_of([b"a", grin[:1], grin[1:3], grin[3:] + b"b"])
    assert found.text == "a😀b"
    assert found.start.tolist() == [0, 1, 1, 1]
    assert found.end.tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("pieces", "bounds", "expected"),
    [
        # A token over a border belongs to the step of its first dark character.
        ([b"ab", b"\n\ncd"], [(0, 2), (4, 6)], [0, 1]),
        ([b"ab.\n", b"cd"], [(0, 3), (4, 6)], [0, 1]),
        # White space between steps belongs to the step before it, before the first to none.
        ([b"\n", b"ab", b"\n", b" \n", b"cd", b"\n"], [(1, 3), (6, 8)], [-1, 0, 0, 0, 1, 1]),
        # Dark text outside the steps has no step, nor has the blank after it.
        ([b"ab", b"<end>", b" "], [(0, 2)], [0, -1, -1]),
        # Of two steps that begin at one place the empty one has no token.
        ([b"ab", b"cd"], [(0, 2), (2, 2), (2, 4)], [0, 2]),
        ([b"", b"ab", b""], [(0, 2)], [-1, 0, -1]),
        ([], [(0, 0)], []),
    ],
)
def test_steps_at_borders(pieces, bounds, expected):
    assert steps_of(characters_of(pieces), np.array(bounds, np.int64)).tolist() == expected
