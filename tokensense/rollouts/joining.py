"""Next week's rollouts behind those of last week.

Reads  two `/rollouts` nodes of one tokenizer.
Gives  joined: one, whose first problems, rollouts and tokens are those of the first, unchanged.
Sign   none.

Each problem of the second node stays a problem of its own, and so a group of its own: a group is
what was sampled for a problem at one step. Problems of equal question text share a cluster,
whichever node they come from: the cluster is the unit of resampling.

Attributes: lists are joined, counts are added; `sampled_by_digest` and `sampling` stay where both
nodes agree on them. Where they do not, `sampled_by_digest` is empty and `sampling` is what they
have in common: these rollouts are not the samples of one policy in one way, so they count as
off-policy. What each part came with stands in the store's attribute `parts`.

Source: own work.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tokensense.errors import StoreError
from tokensense.rollouts.table import texts
from tokensense.schema import ROLLOUTS, TEXT_ROWS
from tokensense.tasks.problem import question_key

OWN = ("digest", "provenance", "parts")
TABLES = {"vocab_id", "vocab_text", "text_length", "text_byte"}


def joined(stored: xr.Dataset, offered: xr.Dataset) -> xr.Dataset:
    """Put `offered` behind `stored`.

    Args:
        stored: `schema.ROLLOUTS`, as it is in a store.
        offered: `schema.ROLLOUTS`, as `trajectory.assemble` makes it.

    Returns:
        `schema.ROLLOUTS`; attributes as the header of this module says, `digest` left out.

    Raises:
        StoreError: they are of two tokenizers, or differ in an attribute that cannot be joined.
    """
    attrs = _attributes(stored.attrs, offered.attrs)
    table = {raw: row for row, raw in reversed(list(enumerate(texts(stored))))}
    rows = stored.sizes["text"]
    for raw in texts(offered):
        if raw not in table:
            table[raw] = rows
            rows += 1
    row_of = np.array([table[raw] for raw in texts(offered)] + [-1], np.int64)  # -1 stays -1
    second = {
        name: row_of[offered[name].values] if name in TEXT_ROWS else offered[name].values
        for name in ROLLOUTS
    }
    second["problem_of"] = second["problem_of"] + stored.sizes["problem"]
    second["cluster"] = _clusters(stored, offered)
    arrays = {
        name: np.concatenate([stored[name].values, second[name]])
        for name in ROLLOUTS
        if name not in TABLES
    }
    vocabulary = _vocabulary(stored, second, offered)
    arrays["vocab_id"] = np.array(list(vocabulary))
    arrays["vocab_text"] = np.array(list(vocabulary.values()))
    added = sorted((row, raw) for raw, row in table.items() if row >= stored.sizes["text"])
    new = [raw for _, raw in added]
    arrays["text_length"] = np.append(stored["text_length"].values, [len(raw) for raw in new])
    arrays["text_byte"] = np.append(
        stored["text_byte"].values, np.frombuffer(b"".join(new), np.uint8)
    )
    return xr.Dataset(
        {
            name: (variable.dims, arrays[name].astype(variable.dtype), stored[name].attrs)
            for name, variable in ROLLOUTS.items()
        },
        attrs=attrs,
    )


def _clusters(stored: xr.Dataset, offered: xr.Dataset) -> np.ndarray:
    """Clusters of the second node's problems: those of equal questions, or new ones."""
    known = dict(zip(_keys(stored), stored["cluster"].values.tolist(), strict=True))
    free = int(stored["cluster"].values.max(initial=-1)) + 1
    found = []
    for key in _keys(offered):
        if key not in known:
            known[key] = free
            free += 1
        found.append(known[key])
    return np.array(found, np.int64)


def _keys(rollouts: xr.Dataset) -> list[str]:
    """What equal questions have in common, for each problem."""
    table = texts(rollouts)
    return [question_key(table[row].decode()) for row in rollouts["question"].values.tolist()]


def _vocabulary(
    stored: xr.Dataset, second: Mapping[str, np.ndarray], offered: xr.Dataset
) -> dict[int, int]:
    """Id -> row of the text table, ids ascending.

    Raises:
        StoreError: an id stands for other bytes in the two.
    """
    first = dict(zip(stored["vocab_id"].values.tolist(), stored["vocab_text"].values, strict=True))
    both = dict(first)
    for token, row in zip(offered["vocab_id"].values.tolist(), second["vocab_text"], strict=True):
        if first.get(token, row) != row:
            old = texts(stored)[first[token]]
            new = texts(offered)[offered["vocab_text"].values[offered["vocab_id"] == token][0]]
            raise StoreError(
                f"appended rollouts need the tokenizer of the store; token {token} is {old!r} in "
                f"the store and {new!r} now. Use another store; nothing was written."
            )
        both[token] = row
    return {token: int(both[token]) for token in sorted(both)}


def _attributes(stored: Mapping[Any, Any], offered: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes of both together."""
    digests = [attrs.get("tokenizer_digest", "") for attrs in (stored, offered)]
    if digests[0] != digests[1]:
        raise StoreError(
            "appended rollouts need the tokenizer of the store; tokenizer_digest is "
            f"{digests[0]!r} in the store, {digests[1]!r} now. Use another store for another "
            "tokenizer; nothing was written."
        )
    names = [name for name in dict.fromkeys([*stored, *offered]) if name not in OWN]
    return {str(n): _attribute(str(n), stored.get(n), offered.get(n)) for n in names}


def _attribute(name: str, one: Any, two: Any) -> Any:  # noqa: ANN401 (an attribute is any JSON value)
    """One attribute of both together."""
    if name in RULES:
        return RULES[name](one, two)
    if one == two:
        return one
    if all(value is None or isinstance(value, list) for value in (one, two)):
        return list(dict.fromkeys([*(one or []), *(two or [])]))
    raise StoreError(
        f"appended rollouts need attribute `{name}` as the store has it; it is {one!r:.80} in the "
        f"store, {two!r:.80} now. Use another store for rollouts of another kind; nothing was "
        "written."
    )


def _sum(one: int | None, two: int | None) -> int:
    return (one or 0) + (two or 0)


def _counts(one: str | None, two: str | None) -> str:
    """JSON of counts by reason, added."""
    found = Counter(json.loads(one or "{}"))
    found.update(json.loads(two or "{}"))
    return json.dumps(found, sort_keys=True)


def _common(one: str | None, two: str | None) -> str:
    """JSON of settings, those that both have."""
    first, second = json.loads(one or "{}"), json.loads(two or "{}")
    kept = {name: value for name, value in first.items() if second.get(name) == value}
    return json.dumps(kept, sort_keys=True)


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "refused": _sum,
    "text_mismatch": _sum,
    "set_aside": _counts,
    "undecided": _counts,
    "sampling": _common,
    "sampled_by_digest": lambda one, two: one if one == two else "",
    "tokenizer": lambda one, _: one,
}
