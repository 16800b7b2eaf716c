"""What is written beside the scores of a probe: its conditions as coordinates, and attributes.

Reads  conditions, the `/rollouts` node.
Gives  coordinates, attributes of `/probes/<name>`.

Source: CF conventions, flags.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokensense.probes.conditions import Condition, shown_text
from tokensense.store.layout import flag_coordinate

COORDINATES = {
    "condition_name": "name of the condition",
    "family": "what the edited word is about",
    "level": "the edited word's side: pos, neg or none",
    "frame": "the sentence around the edited word",
    "wording": "the word pair",
    "tone": "praise, blame or none",
    "placement": "where the text stands in the prompt",
}


def coordinates(conditions: Sequence[Condition]) -> dict[str, xr.Variable]:
    """Coordinates over `condition`: its number, and what it is as CF flags."""
    index = xr.Variable(
        ("condition",),
        np.arange(len(conditions), dtype=np.int32),
        {"units": "1", "description": "number of the condition; see `condition_name`"},
    )
    names = {
        key: [getattr(condition, key.removeprefix("condition_")) for condition in conditions]
        for key in COORDINATES
    }
    return {"condition": index} | {
        key: flag_coordinate(names[key], description=about) for key, about in COORDINATES.items()
    }


def attributes(
    name: str, conditions: Sequence[Condition], rollouts: xr.Dataset, *, scored_by: str
) -> dict[str, Any]:
    """Attributes of the node: texts of the conditions, who sampled and who scored."""
    return {
        "condition_texts": json.dumps([shown_text(c) for c in conditions]),
        "sampled_by": rollouts.attrs.get("sampled_by", []),
        "scored_by": scored_by,
        "description": f"response tokens scored under the conditions of `{name}`",
        "sign": "shift = logp[condition] - logp[base], nats; positive: the token became likelier",
    }
