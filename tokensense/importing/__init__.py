"""Traces that others wrote: one reader a format, all with the same result.

`FORMATS` names every format; `read` is the door; `layouts` says what each follows and cannot tell.
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
from tokensense.importing.open_instruct import read_open_instruct
from tokensense.importing.prime_rl import read_prime_rl
from tokensense.importing.trl import read_trl
from tokensense.importing.verl import read_verl
from tokensense.rollouts.trajectory import Imported

FORMATS = {
    "bigbench_mistake": read_bigbench_mistake,
    "gsm8k_solutions": read_gsm8k_solutions,
    "jsonl": read_jsonl,
    "open_instruct": read_open_instruct,
    "parquet": read_jsonl,
    "prime_rl": read_prime_rl,
    "processbench": read_processbench,
    "trl": read_trl,
    "verl": read_verl,
}

__all__ = ["FORMATS", "read"]


def read(
    path: str | Path,
    *,
    format: str,
    fields: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Imported:
    """Read traces from a file, or from a run's folder.

    Args:
        path: JSON lines, or Parquet by its suffix; or the folder that a trainer wrote.
        format: one of `FORMATS`.
        fields: our name -> the row's field, see `importing.jsonl`; of trainers' formats some.
        limit: keep this many problems, the first, with all their rollouts; None keeps all.

    Returns:
        Problems and traces, and what was left out: `set_aside` by reason, `refused` by line.

    Raises:
        InputError: the file is missing, or not one row could be read, or `fields` does not fit.
        MissingExtraError: Parquet, and pyarrow is not installed.
        SchemaError: `format` is unknown.
    """
    require_member("format", format, FORMATS)
    return FORMATS[format](path, fields=fields, limit=limit)
