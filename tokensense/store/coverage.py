"""Which rollouts a node was made on: rollouts may be appended after it.

Reads  attributes of `/rollouts` and of the other nodes.
Gives  Part, parts_of, parts_with; made_on_all, covered.

Rollouts are only ever appended: those of a store are the first of all its later ones. `/rollouts`
has attribute `digest` and, once something was appended, `parts` (JSON): for each part how many
rollouts the store had with it, the digest of all of them, that of the part alone, and the
attributes that the part came with. Every other node has attribute `rollouts_digest`, so that it can
be told what it was made on: all rollouts, the first so many, or (older stores) not known.

Source: own work.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokensense.store.tree import METADATA, read_json

DIGEST = "digest"
PARTS = "parts"
MADE_ON = "rollouts_digest"


class Part(NamedTuple):
    """Rollouts that came together.

    Attributes:
        rollouts: of the store, this part and all before it.
        digest: of all these.
        added: digest of this part as it came.
        attributes: of this part as it came.
    """

    rollouts: int
    digest: str
    added: str
    attributes: dict[str, Any]


def parts_of(attrs: Mapping[Any, Any], rollouts: int) -> list[Part]:
    """Parts of `/rollouts`; one, where nothing was appended.

    Args:
        attrs: of the node.
        rollouts: that the node has.
    """
    if PARTS in attrs:
        return [Part(**part) for part in json.loads(attrs[PARTS])]
    own = {str(name): value for name, value in attrs.items() if name not in (DIGEST, "provenance")}
    return [Part(rollouts, str(attrs.get(DIGEST, "")), str(attrs.get(DIGEST, "")), own)]


def attributes_of(store: Path, node: str) -> dict[str, Any]:
    """Attributes of a node, without opening its arrays; empty where there is no such node."""
    path = store / node.strip("/") / METADATA
    if not path.is_file():
        return {}
    return dict(read_json(path, what=f"node {node}")["attributes"])


def made_on_all(store: Path, node: str) -> bool:
    """Is the node there, and was it made on all rollouts that the store has now?"""
    own = attributes_of(store, node)
    if not own or node == "/rollouts":
        return bool(own)
    rollouts = attributes_of(store, "/rollouts")
    if MADE_ON in own:
        return bool(own[MADE_ON] == rollouts.get(DIGEST, ""))
    # From before nodes said so; then nothing was appended either, or it was after them.
    return PARTS not in rollouts


def covered(store: Path, node: str) -> int:
    """How many rollouts the node was made on: the first ones; 0 where that is not known."""
    rollouts, own = attributes_of(store, "/rollouts"), attributes_of(store, node)
    total = _rollouts_of(store)
    found = {part.digest: part.rollouts for part in parts_of(rollouts, total)}
    return found.get(own.get(MADE_ON, ""), total if made_on_all(store, node) else 0)


def _rollouts_of(store: Path) -> int:
    path = store / "rollouts" / "length" / METADATA
    return int(read_json(path, what="node /rollouts")["shape"][0]) if path.is_file() else 0
