"""The records of training runs as Datasets: what a store keeps of a run, and what figures draw.

Reads  records as sinks take them (`kind` step, evaluation or finding), plain JSON values.
Gives  run_dataset (one run); side_by_side (several, on common steps).
Sign   none of its own.

Numbers of held-out problems have `held_out_` before their names, since a step has numbers of the
same names. Accuracy has an interval: mean +- Student t times the standard error over problems.

Source: own work.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import t as student

from tokensense.errors import StatisticsError

Record = Mapping[str, Any]

HELD_OUT = "held_out_"
# Number of a step -> unit and meaning; all others that are numbers are kept without.
STEP_NUMBERS = {
    "reward": ("1", "mean reward of the step's rollouts"),
    "entropy": ("nats", "mean surprisal of the tokens drawn"),
    "length": ("tokens", "mean length of a response"),
    "capped": ("1", "share of responses that reached the limit on tokens"),
    "repetition": ("1", "share of runs of four tokens that their response had before"),
    "effective_tokens": ("1", "(sum |c|)^2 / sum c^2 as a share of the tokens with credit"),
    "gradient_norm": ("1", "before it is cut, mean over updates"),
    "clip_low": ("1", "share of tokens clipped from below"),
    "clip_high": ("1", "share of tokens clipped from above"),
}
ABOUT = ("kind", "step")


def run_dataset(records: Sequence[Record], *, attrs: Mapping[str, object]) -> xr.Dataset:
    """One run as a Dataset.

    Args:
        records: of the run, in their order.
        attrs: who was trained on what: `scored_by`, `policy_digest`, `task`, `rule`, `seed`,
            `config` (JSON).

    Returns:
        Numbers of steps over `step`, of evaluations over `evaluation`, both counted in updates
        done; `held_out_accuracy_low` and `_high`, 95 %. Attribute `findings`: JSON.

    Raises:
        StatisticsError: there is no step and no evaluation.
    """
    found: dict[str, Any] = {}
    coords = {}
    for kind, dim, prefix in (("step", "step", ""), ("evaluation", "evaluation", HELD_OUT)):
        rows = [record for record in records if record["kind"] == kind]
        coords[dim] = [int(row["step"]) for row in rows]
        names = sorted({name for row in rows for name in row if name not in ABOUT})
        for name in names:
            values = np.array([_number(row.get(name)) for row in rows])
            unit, meaning = STEP_NUMBERS.get(name, ("", "")) if kind == "step" else ("", "")
            about = {"units": unit, "description": meaning} if unit else {}
            found[prefix + name] = (dim, values, about)
    if not found:
        raise StatisticsError(
            "a training run needs a step or an evaluation; its records have none. Let "
            "`tokensense train` do a step."
        )
    found |= _limits(found)
    events = [dict(record) for record in records if record["kind"] == "finding"]
    said = {"findings": json.dumps(events), "off_policy": 0, **attrs}
    return xr.Dataset(found, coords=coords, attrs=said)


def _limits(found: Mapping[str, Any]) -> dict[str, Any]:
    """95 % interval of the held-out accuracy."""
    accuracy, error = (HELD_OUT + name for name in ("accuracy", "accuracy_error"))
    if accuracy not in found or error not in found:
        return {}
    problems = found[f"{HELD_OUT}problems"][1]
    reach = student.ppf(0.975, np.maximum(problems - 1, 1)) * found[error][1]
    about = {"units": "1", "description": "limit of the 95 % interval over problems"}
    centre = found[accuracy][1]
    return {
        f"{accuracy}_low": ("evaluation", centre - reach, about),
        f"{accuracy}_high": ("evaluation", centre + reach, about),
    }


def side_by_side(runs: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Several runs on common steps, NaN where one has none.

    Args:
        runs: of `run_dataset`, by name.

    Returns:
        As `run_dataset` with the dim `run`; `rule`, `seed` and `findings` (run) as coordinates.
        Attributes: those that all runs agree on.
    """
    about = ("rule", "seed", "findings", "config")
    shared = [{k: v for k, v in run.attrs.items() if k not in about} for run in runs.values()]
    joined = xr.concat(
        [run.drop_attrs(deep=False) for run in runs.values()],
        dim="run",
        join="outer",
        data_vars="all",
        coords="minimal",
        compat="equals",
        combine_attrs="drop_conflicts",
    ).assign_attrs({k: v for k, v in shared[0].items() if all(s.get(k) == v for s in shared)})
    sides: dict[str, Any] = {
        name: ("run", [str(run.attrs.get(name, "")) for run in runs.values()]) for name in about
    }
    return joined.assign_coords({"run": list(runs), **sides})


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
