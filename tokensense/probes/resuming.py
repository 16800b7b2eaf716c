"""Going on with a probe: are the conditions asked for those it was started with?

Reads  conditions, and those of a probe's header.
Gives  as_started: the conditions in the order of the header.

Source: own work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokensense.errors import StoreError
from tokensense.probes.conditions import Condition


def as_started(
    name: str, stored: Sequence[Mapping[str, Any]], conditions: Sequence[Condition]
) -> list[Condition]:
    """Conditions in the order in which a probe was started with them.

    Args:
        name: of the probe.
        stored: conditions of its header, in order.
        conditions: those asked for now, in any order.

    Raises:
        StoreError: they are not the same.
    """
    asked = [asdict(condition) for condition in conditions]
    new = [condition["name"] for condition in asked if condition not in stored]
    gone = [condition["name"] for condition in stored if condition not in asked]
    if new or gone or len(asked) != len(stored):
        raise StoreError(
            f"probe `{name}` needs the {len(stored)} conditions that it was started with; "
            f"{len(asked)} came (new: {_some(new)}; missing: {_some(gone)}). Ask with the same "
            "frames and families, give more conditions in a file of your own as a probe of "
            "another name, or use another store; nothing was scored."
        )
    return [conditions[asked.index(dict(condition))] for condition in stored]


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) or "none") + more
