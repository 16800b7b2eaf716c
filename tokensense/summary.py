"""What a store holds, in one screen.

Reads  nodes of an Archive and its inventory; takes no lock and changes nothing.
Gives  summarize: plain JSON values, in the order in which a person asks.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from tokensense.flat import is_off_policy
from tokensense.rollouts.table import text_of
from tokensense.schema import BASE, Comparability, Finish, IdsOrigin, Label
from tokensense.store import inventory
from tokensense.store.archive import Archive


def summarize(archive: Archive) -> dict[str, Any]:
    """Counts, groups, labels, probes with their comparability, sizes and makers.

    Args:
        archive: a store opened in any mode.

    Returns:
        Plain JSON values. `comparability` of a probe counts (condition, rollout); what is not `ok`
        is left out of statistics and stays in the store.
    """
    stock = inventory.info(archive)
    found: dict[str, Any] = {"path": str(archive.path)}
    if "/rollouts" in stock["nodes"]:
        found |= _rollouts(archive.rollouts())
    probes = {name: _probe(archive, name, state) for name, state in stock["probes"].items()}
    if probes.get(BASE, {}).get("state") == "finished" and "sampled_by" in found:
        base = archive.read(f"/probes/{BASE}").attrs
        found["scored_by"] = base["scored_by"]
        found["off_policy"] = is_off_policy(archive.rollouts(), json.loads(base["header"]))
    found["probes"] = probes
    found["analyses"] = inventory.names_in(archive, "stats")
    found["credit"] = inventory.names_in(archive, "credit")
    groups = ("probes", "stats", "credit")
    if old := [f"/{group}/{name}" for group in groups for name in inventory.behind(archive, group)]:
        found["made_before_an_append"] = old
    found["megabytes"] = round(stock["bytes"] / 1e6, 1)
    found["megabytes_of"] = {n: round(v["bytes"] / 1e6, 2) for n, v in stock["nodes"].items()}
    found["made_with"] = {
        node: _maker(about["attributes"])
        for node, about in stock["nodes"].items()
        if "provenance" in about["attributes"]
    }
    found["format_version"] = stock["format_version"]
    found["holder"] = stock["holder"]
    return found


def _maker(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """By what command, of which commit, with which versions a node was made."""
    found = json.loads(attrs["provenance"])
    git = found["git"] or {}
    return {
        "command": found["command"],
        "commit": git.get("commit"),
        "uncommitted_changes": git.get("dirty"),
        "python": found["python"],
        "packages": found["packages"],
    }


def _rollouts(rollouts: xr.Dataset) -> dict[str, Any]:
    reward = rollouts["reward"].values
    # Rollouts of one problem lie together.
    starts = np.unique(rollouts["problem_of"].values, return_index=True)[1]
    groups = np.split(reward, starts[1:]) if starts.size else []
    mixed = sum(np.unique(group[~np.isnan(group)]).size > 1 for group in groups)
    other = int((~np.isnan(reward) & (reward != 0) & (reward != 1)).sum())
    return {
        "problems": int(rollouts.sizes["problem"]),
        "question_texts": int(np.unique(rollouts["cluster"].values).size),
        "rollouts": int(rollouts.sizes["rollout"]),
        "tokens": int(rollouts.sizes["token"]),
        "longest": int(rollouts["length"].values.max(initial=0)),
        "rewards": {
            "right": int((reward == 1).sum()),
            "wrong": int((reward == 0).sum()),
            "undecided": int(np.isnan(reward).sum()),
            # Statistics of right against wrong know 1 and 0 alone: others must not go unseen.
            **({"neither_1_nor_0": other} if other else {}),
        },
        # Right answers in spite of a wrong step that is known.
        "right_by_luck": int(((reward == 1) & (rollouts["label"].values == Label.ERROR)).sum()),
        "groups_with_contrast": mixed,
        "groups_without_contrast": len(groups) - mixed,
        "generators": dict(sorted(Counter(text_of(rollouts, "generator")).items())),
        "finish": _named(Finish, rollouts["finish"].values),
        "ids_origin": _named(IdsOrigin, rollouts["ids_origin"].values),
        "text_mismatch": int(rollouts.attrs.get("text_mismatch", 0)),
        "labels": _named(Label, rollouts["label"].values),
        **_undecided(rollouts.attrs),
        **_kept_of_the_run(rollouts.attrs),
        "set_aside": json.loads(rollouts.attrs["set_aside"]),
        "refused_lines": int(rollouts.attrs["refused"]),
        "sampled_by": rollouts.attrs["sampled_by"],
        "tokenizer": rollouts.attrs["tokenizer"],
    }


def _undecided(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Why answers of own samples could not be judged."""
    reasons = json.loads(attrs.get("undecided", "{}"))
    return {"undecided": reasons} if reasons else {}


def _kept_of_the_run(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """How true imported traces are to their run; `ingestion` says what each name means."""
    found = {name: json.loads(attrs.get(name, "{}")) for name in ("prompts", "drift", "engine")}
    return {name: value for name, value in found.items() if value}


def _probe(archive: Archive, name: str, state: dict[str, Any]) -> dict[str, Any]:
    """State of one probe; comparability once it is finished."""
    shown = ("state", "blocks", "done", "missing", "bytes", "rollouts_done")
    kept: dict[str, Any] = {key: state[key] for key in shown if key in state}
    if state["state"] != "finished":
        return kept
    node = archive.read(f"/probes/{name}")
    provenance = json.loads(node.attrs["provenance"])
    return {
        "state": "finished",
        "conditions": int(node.sizes["condition"]),
        "comparability": _named(Comparability, node["comparability"].values.ravel()),
        "command": provenance["command"],
        "commit": (provenance["git"] or {}).get("commit"),
    }


def _named(flags: type, values: np.ndarray) -> dict[str, int]:
    found, count = np.unique(values, return_counts=True)
    return {flags(value).name.lower(): int(n) for value, n in zip(found, count, strict=True)}
