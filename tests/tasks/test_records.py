import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import InputError, MissingExtraError
from tokensense.tasks.records import (
    MISSING,
    RowError,
    found,
    needed,
    printed_number,
    rows,
    shown,
    text,
    texts,
    truth,
    whole_number,
)


def read(path):
    refused = []
    return list(rows(path, refused)), refused


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "file.jsonl"
        path.write_bytes(content)
        return path

    return write


def test_byte_order_mark_crlf_blank_lines_and_a_last_line_without_end(file):
    path = file(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    good, refused = read(path)
    assert [(row.line, row.record) for row in good] == [(1, {"a": 1}), (4, {"a": 2})]
    assert good[1].place == f"{path}:4"
    assert refused == []


def test_line_separators_inside_a_text_end_no_line(file):
    content = json.dumps({"a": "x\u2028y\x85z\x0bw"}, ensure_ascii=False).encode() + b"\n"
    good, refused = read(file(content))
    assert good[0].record["a"] == "x\u2028y\x85z\x0bw"
    assert refused == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "JSON is needed; Expecting ',' delimiter at column 8"),
        (b"{'a': 1}", "JSON is needed; Expecting property name"),
        (b'{"a": NaN}', "JSON is needed; NaN is not JSON (null says: not known)"),
        (b'{"a": -Infinity}', "JSON is needed; -Infinity is not JSON"),
        (b"[1, 2]", "a JSON object is needed; [1, 2] came"),
        (b"null", "a JSON object is needed; None came"),
        (b'{"a": "\xff"}', "UTF-8 is needed; byte 7 of the line is not"),
        (b'{"a": "\\ud83d"}', "valid Unicode is needed; a text holds a lone surrogate"),
        (b'{"a": ' + b"1" * 5000 + b"}", "JSON is needed; Exceeds the limit"),
        (b'{"a": ' + b"[" * 100_000, "JSON is needed; it is nested too deeply"),
        (b'{"a": 1}{"a": 2}', "JSON is needed; Extra data at column 9"),
    ],
)
def test_a_broken_line_is_named_and_the_good_ones_come_in(file, line, message):
    path = file(b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    good, refused = read(path)
    assert [row.record["a"] for row in good] == [1, 3]
    assert len(refused) == 1
    assert refused[0].startswith(f"{path}:2: {message}")
    assert len(refused[0]) < len(str(path)) + 200


@pytest.mark.parametrize("content", [b'[\n{"a": 1}\n]', b'[{"a": 1}]', b"[]"])
def test_one_json_array_is_refused_with_the_way_out(file, content):
    with pytest.raises(InputError, match=r"is one JSON array. To convert it: jq -c"):
        read(file(content))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a file is needed at .*none; there is nothing"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match=r"there is a folder"):
        read(tmp_path)


def test_an_empty_file_has_no_rows(file):
    assert read(file(b"")) == ([], [])


def test_parquet_rows_are_numbered_from_one(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `io`")
    import pyarrow.parquet as parquet

    path = tmp_path / "file.parquet"
    table = arrow.table({"a": list(range(2000)), "b": [[{"c": "x"}]] * 2000})
    parquet.write_table(table, path)
    good, refused = read(path)
    assert [row.record["a"] for row in good] == list(range(2000))
    assert good[1999].place == f"{path}:2000"
    assert good[0].record["b"] == [{"c": "x"}]
    assert refused == []
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"a Parquet file is needed at .*Download it again"):
        read(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "file.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"tokensense\[io\]"):
        read(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("a", {"b": [1, {"c": 2}]}),
        ("a.b.0", 1),
        ("a.b.-1.c", 2),
        ("a.b.2", MISSING),
        ("a.b.-3", MISSING),
        ("a.b.x", MISSING),
        ("a.b.0.c", MISSING),
        ("d.e", 3),
        ("d", MISSING),
        ("", MISSING),
    ],
)
def test_dots_reach_into_objects_and_lists(field, value):
    assert found({"a": {"b": [1, {"c": 2}]}, "d.e": 3}, field) == value


RECORD = {
    "t": "x",
    "blank": " ",
    "n": 3,
    "b": True,
    "l": ["x", "y"],
    "mixed": ["x", 1],
    "nil": None,
}


def test_fields_of_the_right_type():
    assert text(RECORD, "t") == "x"
    assert text(RECORD, "blank", empty=True) == " "
    assert whole_number(RECORD, "n", low=0, high=3) == 3
    assert truth(RECORD, "b") is True
    assert texts(RECORD, "l") == ["x", "y"]
    assert needed(RECORD, "nil") is None


@pytest.mark.parametrize(
    ("read_field", "message"),
    [
        (lambda: needed(RECORD, "zz"), r"the field `zz` is needed; the row has \['b', 'blank'"),
        (lambda: text(RECORD, "n"), "`n` must be text; 3 came"),
        (lambda: text(RECORD, "nil"), "`nil` must be text; None came"),
        (lambda: text(RECORD, "blank"), "`blank` must be text; an empty one came"),
        (lambda: whole_number(RECORD, "n", low=0, high=2), "integer from 0 to 2; 3 came"),
        (lambda: whole_number(RECORD, "b", low=0, high=2), "integer from 0 to 2; True came"),
        (lambda: whole_number(RECORD, "t", low=0, high=2), "integer from 0 to 2; 'x' came"),
        (lambda: truth(RECORD, "n"), "`n` must be true or false; 3 came"),
        (lambda: texts(RECORD, "mixed"), "`mixed` must be a list of texts"),
        (lambda: texts({"l": []}, "l"), r"`l` must be a list of texts; \[\] came"),
    ],
)
def test_fields_of_a_wrong_type_say_what_came(read_field, message):
    with pytest.raises(RowError, match=message):
        read_field()


def test_numbers_are_printed_as_people_write_them():
    values = [3, 3.0, 0.5, " 033 ", "", True, None, float("nan"), float("inf"), [1]]
    printed = ["3", "3", "0.5", "033", None, None, None, None, None, None]
    assert [printed_number(value) for value in values] == printed


def test_shown_values_are_short():
    assert shown("x" * 1000) == "'" + "x" * 59 + "… (str)"


@given(
    st.lists(
        st.one_of(st.just(b'{"a": 1}'), st.binary(max_size=20).filter(lambda b: b"\n" not in b))
    )
)
def test_any_bytes_are_read_refused_or_blank(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("bytes") / "file.jsonl"
    path.write_bytes(b"\n".join([b'{"a": 0}', *lines]))
    good, refused = read(path)
    blank = sum(not line.strip(b" \t\r\n") for line in lines)
    assert len(good) + len(refused) + blank == len(lines) + 1
    assert sum(row.record == {"a": 1} for row in good) >= lines.count(b'{"a": 1}')
