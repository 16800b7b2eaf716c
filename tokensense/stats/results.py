"""How a result looks: one Dataset with estimate, interval, method and counts of every output.

Reads  Estimates and the labels of their dims.
Gives  Dataset: `estimate`, `interval` (bound), `error`, `method` (CF flags), `n_clusters`, `lost`.
Sign   that of the statistic; the caller's attrs say it.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from tokensense.schema import Variable, attributes
from tokensense.stats.resampling import REASONS, Estimates, Method

BOUND = "bound"
BOUNDS = ("low", "high")
DESCRIPTIONS = {
    "estimate": "value on the whole sample; unit as in `unit`",
    "interval": "limits of the interval; NaN where `method` says that there is none",
    "error": "standard error, unit of the estimate; NaN where there is no interval",
    "method": "how the interval was made, or why there is none",
    "n_clusters": "problem texts that have a part in the estimate",
    "lost": "resamples in which the statistic has no value",
}


def dataset(
    estimates: Estimates,
    coords: Mapping[str, Sequence[str]],
    *,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Lay estimates out as a Dataset.

    Args:
        estimates: arrays of the dims of `coords`.
        coords: dim -> labels, in the order of the dims.
        attrs: of the Dataset; lists become JSON, so that any store keeps them.

    Returns:
        Dims of `coords` and `bound`; `method` with CF `flag_values` and `flag_meanings`.
    """
    dims = tuple(coords)
    interval = np.stack([estimates.low, estimates.high], axis=-1)
    method = Variable(dims, "int8", "1", DESCRIPTIONS["method"], Method)
    found = xr.Dataset(
        {
            "estimate": (dims, estimates.estimate),
            "interval": ((*dims, BOUND), interval),
            "error": (dims, estimates.error),
            "method": (dims, estimates.method, attributes(method)),
            "n_clusters": (dims, estimates.clusters),
            "lost": (dims, estimates.lost),
        },
        coords={**{dim: list(labels) for dim, labels in coords.items()}, BOUND: list(BOUNDS)},
        attrs=plain(attrs),
    )
    for name, text in DESCRIPTIONS.items():
        found[name].attrs["description"] = text
    for name in ("n_clusters", "lost"):
        found[name].attrs["units"] = "1"
    return found


def reason(code: int) -> str:
    """Say in words how an interval was made, or why there is none.

    Args:
        code: a value of `method`.
    """
    return REASONS[Method(int(code))]


def plain(attrs: Mapping[str, object]) -> dict[str, object]:
    """Give attributes that any store keeps: numbers and texts; everything else becomes JSON.

    Args:
        attrs: by name; truth values become 0 and 1. Numbers that are not finite are not known and
            are left out: attributes are JSON, which has no NaN.
    """
    return {key: _plain(value) for key, value in attrs.items() if not _unknown(value)}


def _unknown(value: object) -> bool:
    """Whether it is a number that is not finite."""
    return isinstance(value, (float, np.floating)) and not np.isfinite(value)


def _plain(value: object) -> object:
    """Give one value as a number or text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (str, int, float)):
        return value
    return json.dumps(value, ensure_ascii=False)
