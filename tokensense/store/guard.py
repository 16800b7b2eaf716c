"""The schema guard: what is written is what `tokensense.schema` says, or it is not written.

Reads  Datasets as the rest of the package makes them, and the tables of `tokensense.schema`.
Gives  conform (aligned by name, converted where not a bit is lost, or refused with every
       difference), require_flags, require_beginning.
Sign   none of its own.

Why so strict: xarray appends float64 to float32, one variable too few and changed coordinates
without a word (xarray#10766, #11101).

Source: own work; CF conventions 1.11 (contiguous ragged arrays, flags).
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from tokensense.checks import require_lengths
from tokensense.errors import SchemaError, StoreError
from tokensense.schema import TEXT_ROWS, Variable, attributes
from tokensense.store.layout import equal, plain_attributes

# CF contiguous ragged arrays: the array of lengths -> the array whose dimension it cuts up.
RAGGED = {"length": "token_id", "prompt_length": "prompt_id", "text_length": "text_byte"}


def conform(dataset: xr.Dataset, table: Mapping[str, Variable], *, what: str) -> xr.Dataset:
    """Check a Dataset against a schema table and give it the table's order and attributes.

    Args:
        dataset: variables as in `table`, dims in any order.
        table: `schema.ROLLOUTS` or `schema.PROBE`.
        what: name of the Dataset in messages.

    Returns:
        A Dataset with the variables in the table's order, dims in the table's order, the schema's
        attributes and no encoding. Coordinates are not allowed. A variable of another dtype is
        converted where every value survives it, with a warning that names it.

    Raises:
        SchemaError: every difference is named, or a value is out of its range.
    """
    wrong = [f"`{name}` is missing" for name in table if name not in dataset.variables]
    wrong += [f"`{name}` is not known" for name in dataset.variables if name not in table]
    for name, variable in table.items():
        if name in dataset.variables:
            wrong += _differences_of(name, dataset[name], variable)
    if wrong:
        raise SchemaError(
            f"{what} needs the variables of the schema; it differs: {'; '.join(wrong)}. "
            "Build it with the function that makes such nodes, or convert by hand; "
            "nothing was written."
        )
    converted = [name for name in table if dataset[name].dtype != np.dtype(table[name].dtype)]
    if converted:
        shown = ", ".join(f"`{n}` from {dataset[n].dtype} to {table[n].dtype}" for n in converted)
        warnings.warn(f"{what}: converted without loss: {shown}", stacklevel=3)
    arrays = {
        name: (
            variable.dims,
            dataset[name].transpose(*variable.dims).values.astype(variable.dtype, copy=False),
            attributes(variable),
        )
        for name, variable in table.items()
    }
    found = xr.Dataset(arrays, attrs=plain_attributes(dataset.attrs, what=what))
    for name, target in RAGGED.items():
        if name in found and target in found:
            require_lengths(f"{what}: {name}", found[name].values, found[target].size)
            found[name].attrs["sample_dimension"] = table[target].dims[0]
    _require_values(found, table, what=what)
    return found


def _differences_of(name: str, array: xr.DataArray, variable: Variable) -> list[str]:
    """What is wrong with one array's dims or dtype."""
    wrong = []
    if sorted(map(str, array.dims)) != sorted(variable.dims):
        wrong.append(f"`{name}` needs dims {variable.dims}, it has {array.dims}")
    elif not _survives(array.values, np.dtype(variable.dtype)):
        wrong.append(f"`{name}` needs dtype {variable.dtype}, it has {array.dtype}")
    return wrong


def _survives(values: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Is the array of this dtype, or of a wider one of its sort with values that fit?

    A narrower one is refused: an id that went through uint16 is another id.
    """
    if values.dtype == dtype:
        return True
    sorts = ("iu", "f")
    if values.dtype.itemsize < dtype.itemsize or not any(
        values.dtype.kind in sort and dtype.kind in sort for sort in sorts
    ):
        return False
    with np.errstate(over="ignore"):
        return bool(equal(values, values.astype(dtype)).all())


def _require_values(dataset: xr.Dataset, table: Mapping[str, Variable], *, what: str) -> None:
    """Flags are known ones, indices point at something, ids are not negative."""
    for name, variable in table.items():
        if variable.flags is not None:
            require_flags(dataset[name].values, variable, what=f"{what}: `{name}`")
    bounds = {name: (-1, dataset.sizes["text"]) for name in TEXT_ROWS if name in dataset}
    if "problem_of" in dataset:
        bounds["problem_of"] = (0, dataset.sizes["problem"])
    for name in ("token_id", "prompt_id", "vocab_id"):
        if name in dataset:
            bounds[name] = (0, 2**31)
    for name, (low, stop) in bounds.items():
        bad = np.flatnonzero((dataset[name].values < low) | (dataset[name].values >= stop))
        if bad.size:
            raise SchemaError(
                f"{what}: `{name}` needs values of {low} to {stop - 1}; at {bad[0]} it has "
                f"{dataset[name].values[bad[0]]} ({bad.size} such). Check how it was built."
            )


def require_flags(values: np.ndarray, variable: Variable, *, what: str) -> None:
    """Check that an enumeration holds known values only.

    Raises:
        SchemaError: it does not; the unknown values are named.
    """
    known = [int(member) for member in variable.flags or ()]
    unknown = np.setdiff1d(values, known)
    if unknown.size:
        raise SchemaError(
            f"{what} needs one of the flags {known}; it has {unknown[:5].tolist()}. "
            "Use the enumeration of tokensense.schema."
        )


def require_beginning(stored: xr.Dataset, both: xr.Dataset) -> None:
    """Check that a node begins with another: that nothing of it is lost where more is appended.

    The vocabulary alone is sorted anew; its words are looked for.

    Raises:
        StoreError: a value of `stored` is not where it was.
    """
    lost = []
    for name, variable in stored.variables.items():
        if name in ("vocab_id", "vocab_text"):
            continue
        if not equal(variable.values, both[name].values[: variable.size]).all():
            lost.append(f"`{name}`")
    words = [zip(d["vocab_id"].values, d["vocab_text"].values, strict=True) for d in (stored, both)]
    if not set(words[0]) <= set(words[1]):
        lost.append("`vocab_id`")
    if lost:
        raise StoreError(
            f"appending rollouts needs the stored ones to stay; changed would be {', '.join(lost)}."
            " Nothing was written; join the nodes with rollouts.joining.joined."
        )
