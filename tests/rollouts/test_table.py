import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import ByteEncoder, ListEncoder, imported
from tokensense.errors import SchemaError
from tokensense.rollouts.table import (
    TextTable,
    offsets,
    response_texts,
    text_of,
    texts,
    token_texts,
)
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.tasks.problem import Problem


@given(st.lists(st.one_of(st.none(), st.text(alphabet="aé\0", max_size=3), st.binary(max_size=3))))
def test_a_table_gives_back_what_went_in_each_text_once(items):
    table = TextTable()
    rows = table.rows(items)
    stored = list(table.row_of)
    wanted = [i.encode() if isinstance(i, str) else i for i in items]
    assert [None if row == -1 else stored[row] for row in rows] == wanted
    assert len(set(stored)) == len(stored) == len({w for w in wanted if w is not None})


def test_offsets_are_int64_and_begin_at_zero():
    found = offsets(np.array([2, 0, 3], np.int32))
    assert found.tolist() == [0, 2, 2, 5]
    assert found.dtype == np.int64
    assert offsets(np.array([2**31 - 1, 1], np.int32))[-1] == 2**31  # no int32 overflow
    assert offsets(np.zeros(0, np.int32)).tolist() == [0]


def test_texts_are_found_by_row():
    found = assemble(imported(2, group=1), ByteEncoder())
    assert text_of(found, "question") == ["What is 0 + 0?", "What is 1 + 1?"]
    assert text_of(found, "generator") == ["a", "a"]
    assert response_texts(found) == [b"So it is 0.", b"So it is 2."]


def test_no_answer_reads_as_empty_text_and_is_kept_apart_from_an_empty_answer():
    problems = [Problem("a", "Why?", None), Problem("b", "What?", "")]
    found = assemble(Imported(problems, []), ByteEncoder())
    assert text_of(found, "answer") == ["", ""]
    assert found["answer"].values[0] == -1
    assert texts(found)[found["answer"].values[1]] == b""


def test_tokens_that_are_part_of_a_character_keep_their_bytes():
    grin = "😀".encode()
    encoder = ListEncoder([grin[:2], b"?", grin[2:], "a"])
    given_ids = Imported([Problem("p", "?", None)], [Trace("p", "t", "", ids=(3, 0, 2))])
    found = assemble(given_ids, encoder)
    assert token_texts(found) == [b"a", grin[:2], grin[2:]]
    assert response_texts(found) == ["a😀".encode()]
    assert text_of(found, "vocab_text") == ["\ufffd", "\ufffd\ufffd", "a"]


def test_errors_say_what_was_needed():
    found = assemble(imported(1), ByteEncoder())
    with pytest.raises(SchemaError, match=r"text table .* is needed; this one has"):
        texts(xr.Dataset())
    with pytest.raises(SchemaError, match=r"`qestion` is not one of .*'question'"):
        text_of(found, "qestion")
    rows = found.sizes["text"]
    for outside in (-2, rows):
        ids = found["token_id"].copy()
        ids[0] = outside
        with pytest.raises(SchemaError, match=f"`token_id` needs rows .* -1 to {rows - 1}; it has"):
            text_of(found.assign(token_id=ids), "token_id")
