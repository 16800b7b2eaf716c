"""A probe between its start and its end: the plan, and what has to agree with it.

Reads  a header, rollout ranges, and block files.
Gives  `.work/probes/<name>/plan.json` beside the blocks.
Sign   none of its own.

The plan holds everything that decides the probe's bytes.

Source: own work.
"""

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from tokensense.errors import SchemaError, StoreError
from tokensense.schema import PROBE
from tokensense.store import coverage, guard, layout, provenance
from tokensense.store.tree import METADATA, WORK, read_json, sync_folder, write_json

PLAN = "plan.json"
CONDITIONS = "conditions"


class Plan(NamedTuple):
    """What decides the bytes of a probe.

    `blocks` are rollouts [start, stop), `tokens` the response tokens of each block, `rollouts` the
    digest of the rollouts that it was started on, `stamp` by what it was first started. The first
    `kept` blocks are in the probe's node already: rollouts were appended after it.
    """

    name: str
    header: dict[str, Any]
    blocks: list[list[int]]
    tokens: list[int]
    rollouts: str
    stamp: dict[str, Any]
    kept: int = 0

    @classmethod
    def make(
        cls,
        name: str,
        header: Mapping[str, Any],
        blocks: Sequence[tuple[int, int]],
        *,
        rollouts: xr.Dataset,
        assembled: Sequence[tuple[int, int]] = (),
    ) -> "Plan":
        """Check header and blocks against the rollouts of the store and the blocks of the node.

        Raises:
            SchemaError: the header is not JSON or lacks a key, blocks have gaps, or the first ones
                are not those that the node has.
        """
        plain = _plain_header(header, name)
        if list(blocks[: len(assembled)]) != list(assembled):
            raise SchemaError(
                f"probe {name!r} has {len(assembled)} blocks and needs to go on after them; the "
                "first ones given are others. Begin with Archive.assembled_blocks(name)."
            )
        length = rollouts["length"].values.astype(np.int64)
        stop = 0
        for index, block in enumerate(blocks):
            if block[0] != stop or block[1] <= block[0]:
                raise SchemaError(
                    f"probe {name!r} needs blocks of whole rollouts in order and without gaps; "
                    f"block {index} is [{block[0]}, {block[1]}) after rollout {stop}. "
                    "Cut range(rollouts) into consecutive [start, stop)."
                )
            stop = block[1]
        if stop != length.size:
            raise SchemaError(
                f"probe {name!r} needs blocks over all {length.size} rollouts of the store; "
                f"they end at {stop}. Cut range({length.size}) into consecutive [start, stop)."
            )
        return cls(
            name=name,
            header=plain,
            blocks=[[int(start), int(end)] for start, end in blocks],
            tokens=[int(length[start:end].sum()) for start, end in blocks],
            rollouts=str(rollouts.attrs["digest"]),
            stamp=provenance.stamp(),
            kept=len(assembled),
        )

    @property
    def conditions(self) -> int:
        """Number of conditions."""
        return len(self.header[CONDITIONS])

    def sizes_of(self, index: int) -> dict[str, int]:
        """Sizes of the dimensions within a block."""
        start, stop = self.blocks[index]
        return {
            "condition": self.conditions,
            "rollout": stop - start,
            "token": self.tokens[index],
        }

    def require_block(self, index: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Check the arrays of a block.

        Raises:
            SchemaError: index, names, dtypes, shapes or flags are wrong; all are named.
        """
        what = f"block {index} of probe {self.name!r}"
        if not 0 <= index < len(self.blocks):
            raise SchemaError(f"{what} needs a number below {len(self.blocks)}. Check the plan.")
        if index < self.kept:
            raise SchemaError(f"{what} is in the store already. Leave out blocks that are done.")
        wrong = [f"`{name}` is missing" for name in PROBE if name not in arrays]
        wrong += [f"`{name}` is not known" for name in arrays if name not in PROBE]
        sizes = self.sizes_of(index)
        for name, variable in PROBE.items():
            shape = tuple(sizes[dim] for dim in variable.dims)
            if name in arrays and arrays[name].shape != shape:
                wrong.append(f"`{name}` needs shape {shape}, it has {arrays[name].shape}")
            if name in arrays and arrays[name].dtype != np.dtype(variable.dtype):
                wrong.append(f"`{name}` needs {variable.dtype}, it has {arrays[name].dtype}")
        if wrong:
            raise SchemaError(
                f"{what} needs the arrays of schema.PROBE for rollouts {self.blocks[index]}; "
                f"it differs: {'; '.join(wrong)}. Nothing was written."
            )
        for name, variable in PROBE.items():
            if variable.flags is not None:
                guard.require_flags(arrays[name], variable, what=f"{what}: `{name}`")

    def frame(
        self,
        coords: Mapping[str, xr.Variable | xr.DataArray],
        attrs: Mapping[str, Any],
        *,
        rollouts: xr.Dataset,
    ) -> xr.Dataset:
        """The node without its large arrays: coordinates, `length`, attributes.

        Raises:
            SchemaError: `condition` is missing, or a coordinate has other dims or sizes.
        """
        what = f"/probes/{self.name}"
        sizes = {"condition": self.conditions, **rollouts["length"].sizes}
        sizes["token"] = rollouts.sizes["token"]
        for name, coordinate in coords.items():
            found = dict(zip(coordinate.dims, coordinate.shape, strict=True))
            if not found or any(sizes.get(str(dim)) != size for dim, size in found.items()):
                raise SchemaError(
                    f"{what}: coordinate `{name}` needs dims among {sizes}; it has {found}. "
                    "Build coordinates of the conditions in the header."
                )
        if "condition" not in coords:
            raise SchemaError(
                f"{what} needs coordinate `condition`; it has {sorted(coords)}. "
                "Add its index, int32."
            )
        length = rollouts["length"].variable
        bare = {name: xr.Variable(c.dims, c.values, c.attrs) for name, c in coords.items()}
        own = {
            "header": json.dumps(self.header, sort_keys=True),
            "block_stops": [stop for _, stop in self.blocks],
            coverage.MADE_ON: self.rollouts,
            layout.PROVENANCE: json.dumps(self.stamp, sort_keys=True),
        }
        node = xr.Dataset({"length": length.load()}, coords=bare, attrs={**attrs, **own})
        return layout.encode_texts(node, what=what)


def _plain_header(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The header as it is after a trip through JSON."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(header), allow_nan=False))
    except (TypeError, ValueError) as cause:
        raise SchemaError(
            f"probe {name!r} needs a header that JSON can hold; it cannot: {cause}. "
            "Give texts, finite numbers, lists and mappings."
        ) from cause
    missing = [key for key in (CONDITIONS, *provenance.IDENTITY) if not plain.get(key)]
    if missing or not isinstance(plain[CONDITIONS], list):
        raise SchemaError(
            f"probe {name!r} needs a header with `{CONDITIONS}`, a list with one entry a "
            f"condition, and {', '.join(provenance.IDENTITY)}; missing or of another type: "
            f"{missing or [CONDITIONS]}. Take them from the conditions and the policy."
        )
    return plain


def folder_of(work: Path, name: str) -> Path:
    """Where plan and blocks of an unfinished probe lie."""
    return work / "probes" / name


def has_plan(work: Path, name: str) -> bool:
    """Was the probe started (and not assembled yet)?"""
    return (folder_of(work, name) / PLAN).is_file()


def read_plan(work: Path, name: str) -> Plan:
    """The plan of an unfinished probe."""
    what = f"probe {name!r}"
    return Plan(**read_json(folder_of(work, name) / PLAN, what=what))


def unfinished(work: Path) -> list[str]:
    """Names of the probes that were started and not assembled."""
    return sorted(path.parent.name for path in (work / "probes").glob(f"*/{PLAN}"))


def header_of(store: Path, name: str) -> dict[str, Any]:
    """Header of a probe that has a node."""
    return dict(json.loads(coverage.attributes_of(store, f"/probes/{name}")["header"]))


def require_equal(stored: Mapping[str, Any], offered: Mapping[str, Any], name: str) -> None:
    """Check that a probe is started as it was the first time.

    Raises:
        StoreError: it is not; differences are named.
    """
    found = layout.attribute_differences(stored, offered, ignored=())
    if found:
        raise StoreError(
            f"probe {name!r} needs the header it was started with; it differs: {listed(found)}. "
            "Start it as before, or give the new probe another name; nothing was changed."
        )


def require_identity(store: Path, plan: Plan, rollouts: Mapping[Any, Any]) -> None:
    """Check policy, tokenizer and template against the rollouts and all other probes.

    Raises:
        StoreError: another one was used before.
    """
    tokenizer = {"tokenizer_digest": rollouts.get("tokenizer_digest", "")}
    others = {"/rollouts": tokenizer if tokenizer["tokenizer_digest"] else {}}
    finished = sorted(path.parent.name for path in (store / "probes").glob(f"*/{METADATA}"))
    others |= {f"/probes/{name}": header_of(store, name) for name in finished}
    work = store / WORK
    others |= {f"unfinished probe {n}": read_plan(work, n).header for n in unfinished(work)}
    others.pop(f"unfinished probe {plan.name}", None)
    for node, header in others.items():
        if found := provenance.identity_differences(header, plan.header):
            raise StoreError(
                f"one store needs one policy, tokenizer and chat template; compared with {node}, "
                f"probe {plan.name!r} differs: {listed(found)}. "
                "Use another store for another policy; nothing was changed."
            )


def require_none_unfinished(work: Path) -> None:
    """Check that no probe is under way, whose rollouts are fixed.

    Raises:
        StoreError: there is one.
    """
    if names := unfinished(work):
        raise StoreError(
            f"appending rollouts needs a store without unfinished probes; unfinished are {names}. "
            "Run them to their end first; nothing was written."
        )


def start(work: Path, plan: Plan) -> Path:
    """Write the plan, or check it against the one that is there.

    Returns:
        Folder for the blocks.

    Raises:
        StoreError: header, blocks or rollouts differ; nothing was changed.
    """
    folder = folder_of(work, plan.name)
    if not has_plan(work, plan.name):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PLAN, plan._asdict())
        sync_folder(folder.parent)
        return folder
    stored = read_plan(work, plan.name)
    ours = {"blocks": plan.blocks, "rollouts": plan.rollouts}
    theirs = {"blocks": stored.blocks, "rollouts": stored.rollouts}
    require_equal({**stored.header, **theirs}, {**plan.header, **ours}, plan.name)
    if found := provenance.environment_differences(stored.stamp, plan.stamp):
        warnings.warn(
            f"probe {plan.name!r} goes on with other versions than it was started with: "
            f"{listed(found)}. The last bits of its numbers may depend on it.",
            stacklevel=3,
        )
    return folder


def remove(work: Path, name: str) -> None:
    """Remove plan and blocks of a probe that is assembled."""
    shutil.rmtree(folder_of(work, name), ignore_errors=True)


def listed(found: Sequence[str], *, limit: int = 5) -> str:
    """The first few differences, and how many more there are."""
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return "; ".join(found[:limit]) + more
