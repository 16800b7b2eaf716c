"""Rows of files from outside, each with its place; a broken row is named and the good ones come in.

Reads  JSON lines (UTF-8, byte order mark or none, LF or CRLF, blank lines allowed), Parquet.
Gives  rows with "file:line" (from 1; of a Parquet file, the row), typed access to their fields.

`NaN` and `Infinity` are not JSON and are refused: null says "not known". Of writers that are known
to print `NaN` where they mean null it can be read as null. Text that is not valid Unicode (lone
surrogates) is refused, since no store could write it. Lines end at LF alone: U+2028
inside a text is no line end.

Source: own work. Writers that leave half a last line are documented in verl's rollout dump.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tokensense.errors import InputError

PARQUET_BATCH = 1024
SHOWN = 60
MISSING = object()
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RowError(InputError):
    """A row is not what it should be: "what was needed, what came"; readers add the place."""


class Row(NamedTuple):
    """One record and where it stands.

    Attributes:
        place: "file:line".
        line: line in the file from 1; of a Parquet file, the row.
        record: the fields.
    """

    place: str
    line: int
    record: Mapping[str, Any]


def rows(path: str | Path, refused: list[str], *, nan_is_null: bool = False) -> Iterator[Row]:
    """The rows of a file, in order.

    Args:
        path: `.parquet` is read as Parquet, anything else as JSON lines.
        refused: a message is appended for each line that is no JSON object.
        nan_is_null: read the literal `NaN` of JSON lines as null; Python's writers print it.

    Returns:
        An iterator; memory does not grow with the file.

    Raises:
        InputError: the file is missing or a folder, or is not of its kind at all.
        MissingExtraError: Parquet, and pyarrow is not installed.
    """
    path = Path(path)
    if not path.is_file():
        came = "a folder" if path.is_dir() else "nothing"
        raise InputError(f"a file is needed at {path}; there is {came}. Check the path.")
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path)
    return _json_rows(path, refused, _nan_as_null if nan_is_null else _refuse_constant)


def _json_rows(path: Path, refused: list[str], constant: Callable[[str], None]) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
            line = line.strip(b" \t\r\n")
            if not line:
                continue
            if number == 1 and (line == b"[" or line.startswith((b"[{", b"[]"))):
                raise InputError(
                    f"JSON lines (one object a line) are needed; {path} is one JSON array. "
                    f"To convert it: jq -c '.[]' {path} > {path.stem}.jsonl."
                )
            place = f"{path}:{number}"
            try:
                yield Row(place, number, _json_object(line, constant))
            except RowError as error:
                refused.append(f"{place}: {error}")


def _json_object(line: bytes, constant: Callable[[str], None]) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=constant)
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except RowError:
        raise
    except UnicodeDecodeError as error:
        raise RowError(f"UTF-8 is needed; byte {error.start} of the line is not") from None
    except UnicodeEncodeError:
        raise RowError("valid Unicode is needed; a text holds a lone surrogate") from None
    except RecursionError:
        raise RowError("JSON is needed; it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RowError(f"JSON is needed; {error.msg} at column {error.colno}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RowError(f"JSON is needed; {error}") from None
    if not isinstance(record, dict):
        raise RowError(f"a JSON object is needed; {shown(record)} came")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise RowError(f"JSON is needed; {name} is not JSON (null says: not known)")


def _nan_as_null(name: str) -> None:
    if name != "NaN":
        _refuse_constant(name)


def _parquet_rows(path: Path) -> Iterator[Row]:
    # With it comes numpy, which the workers of the answer checks must not load with this package.
    from tokensense.checks import require_extra

    parquet = require_extra("pyarrow.parquet", "io")
    arrow_error = require_extra("pyarrow", "io").ArrowInvalid
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=PARQUET_BATCH):
                for record in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:{number}", number, record)
    except arrow_error as error:
        first = str(error).splitlines()[0]
        raise InputError(
            f"a Parquet file is needed at {path}; pyarrow says: {first}. Download it again."
        ) from error


def shown(value: object) -> str:
    """A value as messages show it: short, with its type where it is not plain."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({type(value).__name__})"


def found(record: Mapping[str, Any], field: str) -> object:
    """Value of a field; dots go into objects, numbers into lists; MISSING where there is none.

    A key that holds the dots itself comes first.

    >>> record = {"a.b": 1, "a": {"b": 2, "c": [3, 4]}}
    >>> found(record, "a.b"), found(record, "a.c.-1"), found(record, "a.d") is MISSING
    (1, 4, True)
    """
    if field in record:
        return record[field]
    value: object = record
    for part in field.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.removeprefix("-").isdecimal():
            place = int(part)
            if not -len(value) <= place < len(value):
                return MISSING
            value = value[place]
        else:
            return MISSING
    return value


def needed(record: Mapping[str, Any], field: str) -> object:
    """Value of a field that must be there.

    Raises:
        RowError: it is not.
    """
    value = found(record, field)
    if value is MISSING:
        raise RowError(f"the field `{field}` is needed; the row has {shown(sorted(record))}")
    return value


def text(record: Mapping[str, Any], field: str, *, empty: bool = False) -> str:
    """A field that must be text; `empty` allows text without a visible character.

    Raises:
        RowError: it is missing, of another type, or blank.
    """
    value = needed(record, field)
    if not isinstance(value, str):
        raise RowError(f"`{field}` must be text; {shown(value)} came")
    if not empty and not value.strip():
        raise RowError(f"`{field}` must be text; an empty one came")
    return value


def whole_number(record: Mapping[str, Any], field: str, *, low: int, high: int) -> int:
    """A field that must be an integer from `low` to `high`; true and false are none.

    Raises:
        RowError: it is missing, of another type, or outside.
    """
    value = needed(record, field)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RowError(f"`{field}` must be an integer from {low} to {high}; {shown(value)} came")
    return value


def truth(record: Mapping[str, Any], field: str) -> bool:
    """A field that must be true or false.

    Raises:
        RowError: it is missing or anything else.
    """
    value = needed(record, field)
    if not isinstance(value, bool):
        raise RowError(f"`{field}` must be true or false; {shown(value)} came")
    return value


def texts(record: Mapping[str, Any], field: str) -> list[str]:
    """A field that must be a list of one or more texts.

    Raises:
        RowError: it is missing, empty, or holds anything else.
    """
    value = needed(record, field)
    if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
        raise RowError(f"`{field}` must be a list of texts; {shown(value)} came")
    return value


def printed_number(value: object) -> str | None:
    """A number as text, 3.0 as "3"; text as it is; None for anything else, NaN included."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return str(int(value)) if float(value).is_integer() else repr(value)
