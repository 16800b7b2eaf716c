"""The text table of a node, written and read.

Reads  texts; or a `/rollouts` node.
Gives  rows of the table; or the texts that rows point to, the bytes of tokens and of responses.

Stores hold no object arrays: a node's texts lie back to back in `text_byte`, `text_length` bytes
each, and other variables hold their row numbers, -1 for "no text".

Source: own work; the layout is CF's contiguous ragged array (`sample_dimension`).
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import xarray as xr

from tokensense.errors import SchemaError
from tokensense.schema import NO_TEXT
from tokensense.segments import offsets


class TextTable:
    """Texts of a node, each stored once, numbered in order of first use."""

    def __init__(self) -> None:
        self.row_of: dict[bytes, int] = {}

    def rows(self, texts: Iterable[str | bytes | None]) -> list[int]:
        """Row numbers of texts; -1 for None."""
        found = []
        for text in texts:
            if text is None:
                found.append(NO_TEXT)
                continue
            raw = text if isinstance(text, bytes) else text.encode("utf-8")
            found.append(self.row_of.setdefault(raw, len(self.row_of)))
        return found


def texts(rollouts: xr.Dataset) -> list[bytes]:
    """The text table of a node: the bytes of each row.

    Raises:
        SchemaError: the node has no text table.
    """
    if "text_length" not in rollouts or "text_byte" not in rollouts:
        raise SchemaError(
            "a node with a text table (`text_length`, `text_byte`) is needed; this one has "
            f"{sorted(map(str, rollouts.data_vars))}. Give the `/rollouts` node."
        )
    bound = offsets(np.asarray(rollouts["text_length"])).tolist()
    raw = np.asarray(rollouts["text_byte"], np.uint8).tobytes()
    return [raw[start:end] for start, end in pairwise(bound)]


def text_of(rollouts: xr.Dataset, variable: str) -> list[str]:
    """The texts that a variable points to.

    Args:
        rollouts: a `/rollouts` node.
        variable: one of its variables that hold rows of the text table, as `question`.

    Returns:
        One text an entry; "" where there is none. Bytes that are not UTF-8 (a token may be part of
        a character) show as U+FFFD; `texts` has them as they are.

    Raises:
        SchemaError: the variable is not there, or points outside the table.
    """
    table = texts(rollouts)
    if variable not in rollouts:
        raise SchemaError(
            f"a variable of the node is needed; `{variable}` is not one of "
            f"{sorted(map(str, rollouts.data_vars))}. Name one of these."
        )
    rows = np.asarray(rollouts[variable])
    if rows.size and (rows.min() < NO_TEXT or rows.max() >= len(table)):
        raise SchemaError(
            f"`{variable}` needs rows of the text table, -1 to {len(table) - 1}; it has "
            f"{rows.min()} to {rows.max()}. Only variables described as rows of the text table do."
        )
    return [
        "" if row == NO_TEXT else table[row].decode("utf-8", "replace") for row in rows.tolist()
    ]


def token_texts(rollouts: xr.Dataset) -> list[bytes]:
    """The exact bytes of each response token, in the order of the flat arrays; dims (token,)."""
    table = texts(rollouts)
    ids, rows = np.asarray(rollouts["vocab_id"]), np.asarray(rollouts["vocab_text"])
    place = np.searchsorted(ids, np.asarray(rollouts["token_id"]))
    return [table[row] for row in rows[place].tolist()]


def response_texts(rollouts: xr.Dataset) -> list[bytes]:
    """The bytes that each rollout's tokens decode to; dims (rollout,)."""
    pieces = token_texts(rollouts)
    bound = offsets(np.asarray(rollouts["length"])).tolist()
    return [b"".join(pieces[a:b]) for a, b in pairwise(bound)]
