"""Traces that others wrote: one reader a format, all with the same result.

`FORMATS` names every format; `read` is the door.
"""

from collections.abc import Mapping
from pathlib import Path

from tokensense.checks import require_member
from tokensense.importing.jsonl import read_jsonl
from tokensense.importing.labelled import (
    read_bigbench_mistake,
    read_gsm8k_solutions,
    read_processbench,
)
from tokensense.rollouts.trajectory import Imported

FORMATS = {
    "bigbench_mistake": read_bigbench_mistake,
    "gsm8k_solutions": read_gsm8k_solutions,
    "jsonl": read_jsonl,
    "processbench": read_processbench,
}

__all__ = ["FORMATS", "read"]


def read(
    path: str | Path,
    *,
    format: str,
    fields: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Imported:
    """Read traces from a file.

    Args:
        path: JSON lines, or Parquet by its suffix.
        format: one of `FORMATS`.
        fields: for `jsonl` only: our name -> the row's field, see `importing.jsonl`.
        limit: keep this many problems, the first, with all their rollouts; None keeps all.

    Returns:
        Problems and traces, and what was left out: `set_aside` by reason, `refused` by line.

    Raises:
        InputError: the file is missing, or not one row could be read, or `fields` does not fit.
        SchemaError: `format` is unknown.
    """
    require_member("format", format, FORMATS)
    return FORMATS[format](path, fields=fields, limit=limit)
