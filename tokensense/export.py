"""Nodes of a store as files that other tools open: parquet, CSV, NetCDF.

Reads  an Archive.
Gives  export: one NetCDF file a node; or one table a set of dims, as `rollouts.token.parquet`, with
       one line an entry, the last dim fastest.
Sign   none: values are those of the store.

In tables, enumerations and rows of the text table become words; what a table shares with its tokens
(the rollout of each token, ids as bytes) is left in the other tables, to be joined by position.
Missing numbers are null in parquet and empty in CSV; bytes that are no UTF-8 show as backslash
escapes. NetCDF holds exactly the arrays and attributes of the store (64-bit offset NetCDF 3, by
SciPy: 4 GiB a variable); int64 is written as int32 where it fits, booleans as int8.

Source: own work.
"""

import csv
import json
import math
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokensense.checks import require_extra, require_member
from tokensense.errors import InputError, StoreError
from tokensense.flat import named
from tokensense.rollouts.table import texts
from tokensense.schema import TEXT_ROWS
from tokensense.store.archive import Archive

FORMATS = ("parquet", "csv", "nc")
# Lines of a table in memory at a time.
LINES = 2**18
# Only what a table needs to be read; the vocabulary and texts stand in the words of the others.
HIDDEN = ("text_length", "text_byte")


def export(archive: Archive, node: str, out: Path, *, format: str = "parquet") -> list[Path]:
    """Write a node as files of another format; files that are there are replaced.

    Args:
        archive: a store opened in any mode.
        node: its path, as "/rollouts" or "/probes/opposed".
        out: folder, made where it is missing.
        format: one of `FORMATS`.

    Returns:
        The files, named by the node and, for tables, by their dims.

    Raises:
        SchemaError: `format` is not known.
        StoreError: there is no such node, or a variable is too large for NetCDF 3.
        InputError: a file cannot be written there.
        MissingExtraError: parquet, and pyarrow is not installed.
    """
    require_member("format", format, FORMATS)
    dataset = archive.read(node)
    stem = node.strip("/").replace("/", ".")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if format == "nc":
            return [_netcdf(dataset, out / f"{stem}.nc", node)]
        words = _words(dataset) if node.strip("/") == "rollouts" else dataset
        return [
            _table(words, dims, out / f"{stem}.{'.'.join(map(str, dims)) or 'scalar'}.{format}")
            for dims in _shapes(words)
        ]
    except OSError as cause:
        if isinstance(cause, StoreError):
            raise
        raise InputError(
            f"exporting {node} needs a folder to write to; {out} gave {cause}. Give another."
        ) from cause


def _shapes(dataset: xr.Dataset) -> list[tuple[Hashable, ...]]:
    """Dims of each table; coordinates alone have one only where no larger table holds them."""
    data = [variable.dims for variable in dataset.data_vars.values()]
    alone = [
        v.dims for v in dataset.coords.values() if not any(set(v.dims) <= set(d) for d in data)
    ]
    return list(dict.fromkeys([*data, *alone]))


def _words(rollouts: xr.Dataset) -> xr.Dataset:
    """Rows of the text table as texts; the table itself goes."""
    table = [raw.decode("utf-8", "backslashreplace") for raw in texts(rollouts)]
    lookup = np.array([*table, None], dtype=object)  # row -1, no text, is the last
    found = rollouts.drop_vars([name for name in HIDDEN if name in rollouts])
    return found.assign(
        {n: (rollouts[n].dims, lookup[rollouts[n].values]) for n in TEXT_ROWS if n in rollouts}
    )


def _table(dataset: xr.Dataset, dims: tuple[Hashable, ...], path: Path) -> Path:
    """All variables of the same dims, one line an entry, written piece by piece."""
    columns = {
        str(name): variable
        for name, variable in dataset.variables.items()
        if variable.dims == dims or (name in dataset.coords and set(variable.dims) <= set(dims))
    }
    sizes = {dim: dataset.sizes[dim] for dim in dims}
    write = _parquet if path.suffix == ".parquet" else _csv
    write(path, _pieces(dataset, columns, sizes))
    return path


def _pieces(
    dataset: xr.Dataset, columns: Mapping[str, xr.Variable], sizes: Mapping[Hashable, int]
) -> Iterator[dict[str, Any]]:
    """Columns of at most `LINES` lines; a first piece always, if only for the names."""
    lead = list(sizes)[:-1]
    last = list(sizes.values())[-1] if sizes else 1
    for place in np.ndindex(*(sizes[dim] for dim in lead)):
        at: dict[Hashable, Any] = dict(zip(lead, place, strict=True))
        for start in range(0, max(last, 1), LINES):
            where = {**at, **{dim: slice(start, start + LINES) for dim in list(sizes)[-1:]}}
            lines = min(LINES, last - start)
            found: dict[str, Any] = {
                str(dim): np.full(lines, index) for dim, index in at.items() if dim not in columns
            }
            for dim in list(sizes)[-1:]:
                if dim not in columns:
                    found[str(dim)] = np.arange(start, start + lines)
            for name in columns:
                part = dataset[name].isel(
                    {d: i for d, i in where.items() if d in dataset[name].dims}
                )
                values = named(part) if "flag_meanings" in part.attrs else part.values
                found[name] = np.broadcast_to(values, (lines,))
            yield found


def _parquet(path: Path, pieces: Iterator[dict[str, Any]]) -> None:
    pyarrow = require_extra("pyarrow", "io")
    parquet = require_extra("pyarrow.parquet", "io")
    writer = None
    try:
        for piece in pieces:
            arrays = {
                n: pyarrow.array(
                    v.tolist() if v.dtype.kind in "OU" else v,
                    from_pandas=True,
                    type=pyarrow.string() if v.dtype.kind in "OU" else None,
                )
                for n, v in piece.items()
            }
            table = pyarrow.table(arrays)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _csv(path: Path, pieces: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, piece in enumerate(pieces):
            if not number:
                writer.writerow(piece)
            columns = [[_cell(value) for value in values.tolist()] for values in piece.values()]
            writer.writerows(zip(*columns, strict=True))


def _cell(value: Any) -> Any:  # noqa: ANN401 (a number or a word)
    """A missing number is an empty cell."""
    return "" if isinstance(value, float) and math.isnan(value) else value


def _netcdf(dataset: xr.Dataset, path: Path, node: str) -> Path:
    """One file, arrays as they are stored."""
    plain = xr.Dataset(
        {n: _bare(v) for n, v in dataset.variables.items() if n not in dataset.coords},
        coords={n: _bare(dataset.variables[n]) for n in dataset.coords},
        attrs={name: _netcdf_attribute(value) for name, value in dataset.attrs.items()},
    )
    try:
        plain.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")
    except (ValueError, OverflowError) as cause:
        raise StoreError(
            f"{node} needs to fit NetCDF 3 (int32, 4 GiB a variable); writing it gave {cause}. "
            "Export it as parquet."
        ) from cause
    return path


def _bare(variable: xr.Variable) -> xr.Variable:
    attrs = {name: _netcdf_attribute(value) for name, value in variable.attrs.items()}
    return xr.Variable(variable.dims, variable.values, attrs)


def _netcdf_attribute(value: Any) -> Any:  # noqa: ANN401 (an attribute is any JSON value)
    """An attribute as NetCDF holds it: lists of texts become JSON, empty ones too."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and (
        not value or not all(isinstance(v, int | float) for v in value)
    ):
        return json.dumps(value)
    return value
