"""Where a trainer's rollouts lie, and what a row is called by where it stands.

Reads  a path as a person gives it: the file, its folder, or the run's output folder.
Gives  files in the order in which they were written; names by file and line; the fields that a
       person may choose in a format whose others are fixed.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tokensense.errors import InputError
from tokensense.tasks.records import Row

NUMBER = re.compile(r"\d+")


def numbered(path: str | Path, pattern: str, *, below: str = "") -> list[Path]:
    """Files of a folder, by the last number in their names (step 10 comes after step 9).

    Args:
        path: a file, which stands for itself, or a folder.
        pattern: glob of the files' names; each has a number.
        below: a folder in which the files lie, where `path` is the one above it.

    Returns:
        One file or more.

    Raises:
        InputError: nothing is there, or no file of that name.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    folder = path / below if below and (path / below).is_dir() else path
    found = [file for file in folder.glob(pattern) if NUMBER.search(file.stem)]
    if not found:
        came = f"{folder} has none" if folder.is_dir() else f"there is nothing at {folder}"
        raise InputError(f"files `{pattern}` are needed; {came}. Check the path and the format.")
    return sorted(found, key=lambda file: (int(NUMBER.findall(file.stem)[-1]), file.name))


def file_of(row: Row) -> Path:
    """The file that a row stands in."""
    return Path(row.place.rpartition(":")[0])


def name_of(row: Row, *, folder: bool = False) -> str:
    """A row's name by its file and line, as `completions_00010:3`; `folder` for that one too."""
    file = file_of(row)
    return f"{file.parent.name}/" * folder + f"{file.stem}:{row.line}"


def chosen(
    fields: Mapping[str, str] | None, allowed: Collection[str], format: str
) -> dict[str, str]:
    """The field map of a format most of whose fields are fixed.

    Args:
        fields: our name -> the file's.
        allowed: our names that may be mapped.
        format: for the message.

    Returns:
        The map; empty for None.

    Raises:
        InputError: another name is mapped.
    """
    given = dict(fields or {})
    if unknown := sorted(set(given) - set(allowed)):
        raise InputError(
            f"the format `{format}` needs a field map of {sorted(allowed)} at most; {unknown} came."
            " Leave it out, or use the format `jsonl`, whose fields are all free."
        )
    return given
