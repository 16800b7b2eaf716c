"""The flat view: every response token of a store under every condition.

Reads  nodes `/rollouts` and `/probes/<name>`, in memory or as arrays of dask.
Gives  flat_tokens: one Dataset, flags decoded to words; of dask arrays, one that stays on disk.
Sign   shift = logp[condition] - logp[base], nats; positive: the token becomes likelier.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from tokensense.errors import SchemaError, StoreError
from tokensense.rollouts.table import text_of, texts
from tokensense.schema import BASE, NO_TOKEN, ROLLOUTS, STATISTICS, Comparability, attributes
from tokensense.segments import offsets

# NumPy, or dask where the nodes were opened lazily.
Array: TypeAlias = Any
CONDITION_LABELS = ("family", "level", "frame", "wording", "tone", "placement")
DIGESTS = ("policy_digest", "tokenizer_digest", "template_digest")
NO_PROBE = "a probe is needed; the store has none. Run `tokensense probe` (or Study.probe) first."


def flat_tokens(rollouts: xr.Dataset, probes: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Join rollouts and probes into one flat Dataset.

    Args:
        rollouts: the node `/rollouts`.
        probes: probe name -> its node; `base` among them, whose condition comes first.

    Returns:
        Variables `logp`, `shift`, `entropy` (nats), `p_max`, `p_square_sum` (condition, token);
        `comparable`, `inserted_tokens` (condition, rollout); `length`, `finish`, `ids_origin`,
        `label`, `wrong_step`, `wrong_token` (rollout); `sampled_logp` (token). Coordinates of a
        condition: its name, probe, family, level, frame, wording, tone, placement; of a token:
        problem, cluster, rollout, reward, generator, kind, step, is_wrong_token (the first wrong
        one of its rollout), token_id, text (bytes that are no UTF-8 show as backslash escapes).
        Stores from before `wrong_token` and `sampled_logp` show what these mean by "not known": -1
        and NaN. Attributes: who sampled and scored, `off_policy` (see `is_off_policy`), `dtype` of
        the scoring weights, digests. Where the nodes are arrays of dask all over tokens is too;
        there `kind` is its flags (see `stats.grouped.mean_by`), and `text` and `generator` of each
        token are left out: as words they would not fit into memory.

    Raises:
        StoreError: there is no base probe.
    """
    if BASE not in probes:
        raise StoreError(NO_PROBE)
    names = [BASE, *sorted(name for name in probes if name != BASE)]
    variables: dict[str, Any] = {
        name: (("condition", "token"), _stacked(probes, names, name), probes[BASE][name].attrs)
        for name in STATISTICS
    }
    logp = variables["logp"][1]
    variables["shift"] = (
        ("condition", "token"),
        logp - logp[:1],
        {"units": "nats", "description": "logp[condition] - logp[base]; positive: likelier"},
    )
    comparable = _stacked(probes, names, "comparability") == Comparability.OK
    variables["comparable"] = (("condition", "rollout"), comparable)
    variables["inserted_tokens"] = (
        ("condition", "rollout"),
        _stacked(probes, names, "inserted_tokens"),
        probes[BASE]["inserted_tokens"].attrs,
    )
    variables |= _rollout_variables(rollouts)
    of_tokens = _lazy_token_coords if rollouts["token_id"].chunks else _token_coords
    coords = {**_condition_coords(probes, names), **of_tokens(rollouts)}
    header = json.loads(probes[BASE].attrs["header"])
    return xr.Dataset(variables, coords=coords).assign_attrs(
        sampled_by=rollouts.attrs["sampled_by"],
        scored_by=probes[BASE].attrs["scored_by"],
        off_policy=is_off_policy(rollouts, header),
        dtype=header["dtype"],
        **{key: header[key] for key in DIGESTS},
    )


def is_off_policy(rollouts: xr.Dataset, header: Mapping[str, Any]) -> bool:
    """Whether the tokens come from another distribution than the one that scored them.

    Args:
        rollouts: the node `/rollouts`.
        header: of the base probe.

    Returns:
        True where the sampler is not known, is another policy, or drew at another temperature.
    """
    if rollouts.attrs.get("sampled_by_digest", "") != header["policy_digest"]:
        return True
    sampling = json.loads(rollouts.attrs.get("sampling", "{}"))
    scored_at = header.get("temperature", 1.0)
    return bool(sampling.get("temperature", scored_at) != scored_at)


def named(flags: xr.DataArray) -> np.ndarray:
    """Words of a variable with CF `flag_values` and `flag_meanings`.

    Raises:
        SchemaError: it has none.
    """
    meanings = str(flags.attrs.get("flag_meanings", "")).split()
    values = flags.attrs.get("flag_values", [])
    if not meanings or len(meanings) != len(values):
        raise SchemaError(
            f"`{flags.name}` needs `flag_values` and as many `flag_meanings`; it has {values} and "
            f"{meanings}. Probe again: the node is not one of ours."
        )
    place = np.searchsorted(np.asarray(values), flags.values)
    return np.asarray(np.array(meanings)[place])


def _stacked(probes: Mapping[str, xr.Dataset], names: list[str], variable: str) -> Array:
    """One variable of all probes, NumPy or dask as it is stored."""
    parts = [probes[name][variable].variable for name in names]
    concat: Any = xr.Variable.concat  # has no types
    return concat(parts, "condition").data


def _condition_coords(probes: Mapping[str, xr.Dataset], names: list[str]) -> dict[str, Any]:
    """Names made unique by the probe where two probes use the same."""
    labels = {
        label: np.concatenate([named(probes[name][label]) for name in names])
        for label in ("condition_name", *CONDITION_LABELS)
    }
    probe = np.concatenate([np.repeat(name, probes[name].sizes["condition"]) for name in names])
    own = labels.pop("condition_name")
    repeated = {name for name in own if (own == name).sum() > 1}
    unique = [f"{p}/{n}" if n in repeated else n for p, n in zip(probe, own, strict=True)]
    return {
        "condition": ("condition", np.array(unique)),
        "probe": ("condition", probe),
        **{label: ("condition", values) for label, values in labels.items()},
    }


def _rollout_variables(rollouts: xr.Dataset) -> dict[str, Any]:
    flags = ("finish", "ids_origin", "label")
    sampled = ROLLOUTS["sampled_logp"]
    return {
        "length": ("rollout", rollouts["length"].values),
        "wrong_step": ("rollout", rollouts["wrong_step"].values),
        "wrong_token": ("rollout", np.asarray(_known(rollouts, "wrong_token", NO_TOKEN))),
        "sampled_logp": (
            sampled.dims,
            _known(rollouts, "sampled_logp", np.nan),
            attributes(sampled),
        ),
        **{name: ("rollout", named(rollouts[name])) for name in flags},
    }


def _known(rollouts: xr.Dataset, name: str, unknown: int | float) -> Array:
    """A variable that stores have only since it was added; `unknown` throughout where it is not."""
    if name in rollouts:
        return rollouts[name].data if rollouts[name].chunks else np.asarray(rollouts[name].values)
    variable = ROLLOUTS[name]
    return np.full(rollouts.sizes[variable.dims[0]], unknown, variable.dtype)


def _token_coords(rollouts: xr.Dataset) -> dict[str, Any]:
    length = rollouts["length"].values
    per_rollout = {
        **_rollout_coords(rollouts),
        "generator": np.array(text_of(rollouts, "generator"), dtype=str),
    }
    table = texts(rollouts)
    pieces = [
        table[row].decode("utf-8", "backslashreplace") for row in rollouts["vocab_text"].values
    ]
    vocabulary = np.array(pieces, dtype=str)
    ids = rollouts["token_id"].values
    place = np.searchsorted(rollouts["vocab_id"].values, ids)
    return {
        **{name: ("token", np.repeat(values, length)) for name, values in per_rollout.items()},
        "kind": ("token", named(rollouts["kind"])),
        "step": ("token", rollouts["step"].values),
        "is_wrong_token": ("token", _is_wrong_token(rollouts)),
        "token_id": ("token", ids),
        "text": ("token", vocabulary[place] if ids.size else np.empty(0, dtype=str)),
    }


def _rollout_coords(rollouts: xr.Dataset) -> dict[str, np.ndarray]:
    """What every token of a rollout shares, one entry a rollout."""
    problem = rollouts["problem_of"].values
    return {
        "problem": problem,
        "cluster": rollouts["cluster"].values[problem],
        "rollout": np.arange(problem.size),
        "reward": rollouts["reward"].values,
    }


def _lazy_token_coords(rollouts: xr.Dataset) -> dict[str, Any]:
    """Coordinates of tokens as arrays of dask: made, chunk by chunk, when they are asked for."""
    import dask.array as da

    start = offsets(rollouts["length"].values)
    place = da.arange(int(start[-1]), chunks=rollouts["token_id"].chunks, dtype=np.int64)
    # The last rollout that begins at or before a token: empty ones begin there too, and own none.
    owner = place.map_blocks(lambda at: np.searchsorted(start, at, "right") - 1, dtype=np.int64)
    wrong = np.asarray(_known(rollouts, "wrong_token", NO_TOKEN))
    wrong_at = np.where(wrong == NO_TOKEN, NO_TOKEN, start[:-1] + wrong)

    def shared(values: np.ndarray) -> Array:
        return owner.map_blocks(lambda rollout: values[rollout], dtype=values.dtype)

    return {
        **{n: ("token", shared(values)) for n, values in _rollout_coords(rollouts).items()},
        "kind": ("token", rollouts["kind"].data, rollouts["kind"].attrs),
        "step": ("token", rollouts["step"].data),
        "is_wrong_token": ("token", shared(wrong_at) == place),
        "token_id": ("token", rollouts["token_id"].data),
    }


def _is_wrong_token(rollouts: xr.Dataset) -> np.ndarray:
    """True at the first wrong token of each rollout that has one."""
    wrong = np.asarray(_known(rollouts, "wrong_token", NO_TOKEN))
    start = offsets(rollouts["length"].values)
    found = np.zeros(start[-1], bool)
    found[(start[:-1] + wrong)[wrong != NO_TOKEN]] = True
    return found
