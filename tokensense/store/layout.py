"""How arrays lie in the store: schema guard, attributes, chunks and codecs.

Reads  Datasets as the rest of the package makes them, and the tables of `tokensense.schema`.
Gives  Datasets that plain xarray and zarr v3 can write and read back without loss: CF attributes,
       no fill value on ids and enumerations, NaN on floats, no strings (they become int32 flags).
Sign   none of its own; units and sign come from the schema's descriptions.

Source: CF conventions 1.11 (contiguous ragged arrays, flags); zarr v3 core codecs.
"""

import hashlib
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from zarr.codecs import BloscCodec, Crc32cCodec

from tokensense.errors import SchemaError

# An array up to this many elements is one chunk: a small store should not be a thousand files.
SMALL = 2**20
CHUNK = 2**18
SHARD = 2**20
# A shard is what assembly holds in memory, so a probe of 200 conditions may not put all in one.
CONDITIONS_PER_SHARD = 16
# Bits are shuffled too: in `storage`, and in `shards`.
COMPRESSION: dict[str, Any] = {"cname": "lz4", "clevel": 5}

# xarray would turn numbers with these units into time spans when it reads them back.
TIME_UNITS = frozenset(
    ["days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds"]
)
# Attributes that say how and when, not what: left out where contents are compared.
PROVENANCE = "provenance"


class Grid(NamedTuple):
    """Shape of a chunk, and of the shard that holds several; None where a chunk is a file."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None


def grid(shape: Sequence[int]) -> Grid:
    """Chunks and shards of an array, by its shape alone (so a store's bytes have no history).

    Args:
        shape: the last dimension is the long one (`token`).
    """
    whole = tuple(max(1, size) for size in shape)
    if math.prod(whole) <= SMALL:
        return Grid(whole, None)
    *leading, last = whole
    chunk = min(last, CHUNK)
    shard = min(SHARD, math.ceil(last / chunk) * chunk)
    # Only the dimension before the long one is gathered: a chunk is one condition's tokens.
    gathered = [min(size, CONDITIONS_PER_SHARD) for size in leading[-1:]]
    ones = [1] * len(leading)
    return Grid((*ones, chunk), (*ones[len(gathered) :], *gathered, shard))


def storage(shape: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Arguments that zarr's `create_array` and xarray's `encoding` share.

    The checksum is the outermost codec: a damaged chunk raises when it is read, it never decodes.
    """
    chunks, shards = grid(shape)
    found: dict[str, Any] = {
        "chunks": chunks,
        "compressors": [BloscCodec(**COMPRESSION, shuffle="bitshuffle"), Crc32cCodec()],
        "fill_value": math.nan if dtype.kind == "f" else dtype.type(0).item(),
    }
    return found if shards is None else {**found, "shards": shards}


def encoding(dataset: xr.Dataset) -> dict[Hashable, dict[str, Any]]:
    """Encoding for `Dataset.to_zarr`: no `_FillValue` attribute anywhere, so ids stay integers."""
    return {
        name: {"_FillValue": None, **storage(variable.shape, variable.dtype)}
        for name, variable in dataset.variables.items()
    }


def write_dataset(dataset: xr.Dataset, folder: Path) -> None:
    """Write a Dataset as a zarr v3 group of its own, laid out as all nodes are."""
    dataset.to_zarr(
        folder,
        mode="w",
        zarr_format=3,
        consolidated=False,
        encoding=encoding(dataset),
        # A chunk that is not there is a lost one, never an empty one.
        write_empty_chunks=True,
    )


def plain_attributes(attrs: Mapping[Any, Any], *, what: str) -> dict[str, Any]:
    """Attributes as JSON can hold them: NumPy scalars and arrays become plain numbers and lists.

    Raises:
        SchemaError: an attribute is a mapping, None, NaN or infinite, or of another type.
    """
    return {str(name): _plain(value, f"{what}: {name}") for name, value in attrs.items()}


def _plain(value: Any, what: str) -> Any:  # noqa: ANN401 (an attribute is any JSON value)
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise SchemaError(
        f"attribute `{what}` needs text, finite numbers or lists of them; it is {value!r:.80}. "
        "Leave out what is not known, and give mappings as json.dumps(...)."
    )


def flag_coordinate(
    names: Sequence[str], *, dim: str = "condition", description: str, units: str = "1"
) -> xr.Variable:
    """Names as int32 flags with CF `flag_values` and `flag_meanings`, in order of appearance.

    Args:
        names: one a place along `dim`; letters, digits and ``_-.+@`` only, as CF wants it.
        dim: the dimension.
        description: plain words for the attributes.
        units: units attribute.

    Returns:
        Variable over `dim`; it stays integers when it is read back.

    Raises:
        SchemaError: a name is not one word.
    """
    bad = [name for name in names if not re.fullmatch(r"[\w.+@-]+", name)]
    if bad:
        raise SchemaError(
            f"flags over {dim!r} need names of letters, digits and '_-.+@'; {bad[:3]} are not. "
            "Rename them."
        )
    found = _flags((dim,), np.asarray(names, dtype=object), {"units": units}, description)
    del found.attrs["texts"]
    return found


def _flags(
    dims: tuple[Any, ...], names: np.ndarray, attrs: Mapping[Any, Any], description: str
) -> xr.Variable:
    known = {name: place for place, name in enumerate(dict.fromkeys(names.ravel().tolist()))}
    values = np.array([known[name] for name in names.ravel().tolist()], np.int32)
    words = [re.sub(r"[^\w.+@-]", "_", name) or "empty" for name in known]
    if len(set(words)) < len(words):
        words = [f"{word}_{place}" for place, word in enumerate(words)]
    extra = {
        "description": attrs.get("description", description),
        "flag_values": list(known.values()),
        "flag_meanings": " ".join(words),
        "texts": list(known),
    }
    return xr.Variable(dims, values.reshape(names.shape), {**attrs, **extra})


def encode_texts(dataset: xr.Dataset, *, what: str) -> xr.Dataset:
    """Make any Dataset storable: strings become flags, attributes plain, encodings go.

    Raises:
        SchemaError: a variable has a dtype without a portable form, or units that plain xarray
            would read back as time spans.
    """
    variables: dict[Hashable, xr.Variable] = {}
    for name, variable in dataset.variables.items():
        label = f"{what}: `{name}`"
        attrs = plain_attributes(variable.attrs, what=label)
        if attrs.get("units") in TIME_UNITS:
            raise SchemaError(
                f"{label} needs units that stay numbers; {attrs['units']!r} is read back as a "
                "time span. Write 's', 'min' or 'h'."
            )
        values = variable.values
        if _is_text(values):
            variables[name] = _flags(variable.dims, values.astype(object), attrs, str(name))
        elif values.dtype.kind in "biuf":
            variables[name] = xr.Variable(variable.dims, values, attrs)
        else:
            raise SchemaError(
                f"{label} needs numbers, booleans or text; its dtype is {values.dtype}. "
                "Convert it before it is stored."
            )
    attrs = plain_attributes(dataset.attrs, what=what)
    names = [name for name in dataset.variables if name in dataset.coords]
    return xr.Dataset(
        {name: variable for name, variable in variables.items() if name not in names},
        coords={name: variables[name] for name in names},
        attrs=attrs,
    )


def _is_text(values: np.ndarray) -> bool:
    if values.dtype.kind in "UT":
        return True
    return values.dtype.kind == "O" and all(isinstance(item, str) for item in values.ravel())


def decode_texts(dataset: xr.Dataset) -> xr.Dataset:
    """Undo `encode_texts`: variables with attribute `texts` are strings again.

    Enumerations of the schema stay integers.
    """
    found = dataset
    for name in [name for name, v in dataset.variables.items() if "texts" in v.attrs]:
        variable = dataset.variables[name]
        texts = np.array(variable.attrs["texts"], dtype=np.str_).reshape(-1)
        gone = ("texts", "flag_values", "flag_meanings")
        attrs = {key: value for key, value in variable.attrs.items() if key not in gone}
        values = texts[variable.values] if texts.size else variable.values.astype(np.str_)
        found = found.assign({name: xr.Variable(variable.dims, values, attrs)})
    return found


def content_digest(dataset: xr.Dataset) -> str:
    """Sha256 over names, dims, dtypes, shapes and bytes of all variables; attributes left out."""
    found = hashlib.sha256()
    for name in sorted(map(str, dataset.variables)):
        variable = dataset.variables[name]
        values = np.ascontiguousarray(variable.values)
        about = [name, [str(dim) for dim in variable.dims], values.dtype.str, list(values.shape)]
        found.update(json.dumps(about).encode())
        found.update(values.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def differences(stored: xr.Dataset, offered: xr.Dataset) -> list[str]:
    """What `offered` has otherwise than `stored`: dims, dtypes, values, attributes.

    NaN equals NaN. Attribute `provenance` is not compared: it says when and by what.
    """
    found = []
    for name in dict.fromkeys([*stored.variables, *offered.variables]):
        if name not in stored.variables or name not in offered.variables:
            found.append(f"`{name}` is only in {'the store' if name in stored else 'the new data'}")
            continue
        one, two = stored.variables[name], offered.variables[name]
        if one.dims != two.dims or one.shape != two.shape or one.dtype != two.dtype:
            shapes = [f"{v.dtype} {dict(zip(v.dims, v.shape, strict=True))}" for v in (one, two)]
            found.append(f"`{name}` is {shapes[0]} in the store, {shapes[1]} now")
            continue
        same = equal(one.values, two.values)
        if not same.all():
            found.append(f"`{name}` differs in {(~same).sum()} of {same.size} values")
        found += attribute_differences(one.attrs, two.attrs, prefix=f"`{name}` ")
    return found + attribute_differences(stored.attrs, offered.attrs)


def equal(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Equal bit for bit as numbers go: NaN equals NaN."""
    same = one == two
    if one.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(two)
    return np.asarray(same)


def attribute_differences(
    stored: Mapping[Any, Any],
    offered: Mapping[Any, Any],
    *,
    prefix: str = "",
    ignored: Iterable[str] = (PROVENANCE,),
) -> list[str]:
    """What two mappings of JSON values differ in, nested names joined by dots."""
    found = []
    for name in dict.fromkeys([*stored, *offered]):
        if name in ignored:
            continue
        path = f"{prefix}{name}"
        if name not in stored or name not in offered:
            where = "only in the store" if name in stored else "not in the store"
            found.append(f"{path} is {where}")
            continue
        one, two = stored[name], offered[name]
        inner_one, inner_two = _inner(one), _inner(two)
        if inner_one is not None and inner_two is not None and len(inner_one) == len(inner_two):
            found += attribute_differences(inner_one, inner_two, prefix=f"{path}.", ignored=())
        elif one != two:
            found.append(f"{path} is {_short(one)} in the store, {_short(two)} now")
    return found


def _inner(value: object) -> Mapping[Any, Any] | None:
    """Parts of a nested JSON value by name or place; None for a plain one."""
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def _short(value: object) -> str:
    """A value in a message."""
    return f"{len(value)} items" if isinstance(value, list | tuple | dict) else f"{value!r:.60}"
