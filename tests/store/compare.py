"""Are two stores the same, in every array and every attribute?"""

import json
from pathlib import Path

import numpy as np
import xarray as xr

from tokensense.store.tree import WORK


def equal_stores(one, two):
    """Names of all differences between two stores; empty if they are equal.

    Left out, because they say when and by what: `.work`, and attribute `provenance`. All else is
    compared three ways: as plain xarray reads it (bit for bit, NaN payloads included), every JSON
    file of the metadata, and the bytes of every chunk.
    """
    found = []
    trees = [xr.open_datatree(path) for path in (one, two)]
    groups = [sorted(tree.groups) for tree in trees]
    if groups[0] != groups[1]:
        return [f"groups {groups}"]
    for group in groups[0]:
        a, b = (tree[group].to_dataset() for tree in trees)
        if sorted(a.variables) != sorted(b.variables) or list(a.coords) != list(b.coords):
            found.append(f"variables of {group}")
            continue
        found += [f"{group}: attributes"] * (_bare(a.attrs) != _bare(b.attrs))
        for name in a.variables:
            x, y = a.variables[name], b.variables[name]
            if (x.dims, x.dtype, x.shape, x.attrs) != (y.dims, y.dtype, y.shape, y.attrs):
                found.append(f"{group}/{name}: dims, dtype or attributes")
            elif x.values.tobytes() != y.values.tobytes():
                found.append(f"{group}/{name}: values")
    for tree in trees:
        tree.close()
    return found + _files(Path(one), Path(two))


def _files(one, two):
    names = [
        {p.relative_to(root) for p in root.rglob("*") if p.is_file() and WORK not in p.parts}
        for root in (one, two)
    ]
    found = [f"only in one: {name}" for name in sorted(names[0] ^ names[1])]
    for name in sorted(names[0] & names[1]):
        a, b = ((root / name).read_bytes() for root in (one, two))
        if name.name == "zarr.json":
            a, b = (_bare(json.loads(text)) for text in (a, b))
        found += [f"bytes of {name}"] * (a != b)
    return found


def _bare(value):
    """A JSON value without `provenance`, at any depth."""
    if isinstance(value, dict):
        return {name: _bare(item) for name, item in value.items() if name != "provenance"}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_bare(item) for item in value] if isinstance(value, list) else value
