"""Results as lines of text: what a terminal shows, and what has to stand beside it.

Reads  Datasets of `describe`.
Gives  table: rows of text; notes: sentences.
Sign   as in the Datasets.
"""

import itertools
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from tokensense.stats.resampling import Method

CHARACTER, LOCALIZATION, DECISION = "character", "localization", "decision"
LEFT_OUT, PERMUTED = "left_out", "kind_permuted"
# Without the agreement of scores: a line for every two of them is for a table of its own.
SECTIONS = (
    *(DECISION, CHARACTER, "triple", "kind", PERMUTED, "floor", "neutral"),
    *("read", "read_by_family", "informative", "controls", "beyond", "step_choice", LOCALIZATION),
    *("polarity", "outcome_tone", LEFT_OUT, "concentration"),
)


class Row(NamedTuple):
    """One line of a table, as text.

    Attributes:
        section: name of the Dataset.
        name: of the statistic, kind, score or condition.
        value: estimate [low, high] of the verdict, or of what stands alone.
        placebo: the same of the placebo; empty where it stands alone.
        difference: the same of verdict - placebo.
        unit: of the three.
        n: problem texts, rollouts and tokens.
    """

    section: str
    name: str
    value: str
    placebo: str
    difference: str
    unit: str
    n: str


def table(
    result: Mapping[str, xr.Dataset],
    *,
    sections: tuple[str, ...] = SECTIONS,
    measures: tuple[str, ...] = ("absolute_shift",),
) -> list[Row]:
    """Write results as rows of text.

    Args:
        result: of `describe`.
        sections: which of its Datasets, in this order; those it lacks are passed over.
        measures: which measures of `kind` to show.
    """
    rows: list[Row] = []
    for section in sections:
        if section not in result:
            continue
        found = result[section]
        if section == DECISION:
            rows += _decided(found)
            continue
        if section == LEFT_OUT:
            rows += _left_out(found)
            continue
        if section == PERMUTED:
            rows += _permuted(found.sel(measure=list(measures)))
            continue
        if section == CHARACTER:
            counts = _counts(found.isel(quantity=0))
            rows.append(Row(section, "verdicts", found.attrs["word"], "", "", "", counts))
            continue
        lead = [str(dim) for dim in found["estimate"].dims if dim != "term"]
        shown = found.sel(measure=list(measures)) if "measure" in lead else found
        stacked = shown.stack(row=lead)
        for index in range(stacked.sizes["row"]):
            rows.append(_row(section, stacked.isel(row=index), lead))
    return rows


def notes(result: Mapping[str, xr.Dataset]) -> list[str]:
    """What has to stand beside the numbers: what was left out, by whom sampled, the machine.

    Args:
        result: of `describe`; the `numerical_floor` of the store beside it, where there is one.
    """
    attrs = result["triple"].attrs
    found: list[str] = json.loads(attrs["statements"])
    if attrs["off_policy"]:
        found.append(
            "off-policy: the scoring policy is not known to have drawn these tokens; no number is "
            "an expectation under it"
        )
    if DECISION in result:
        decision = result[DECISION]
        found.append(f"decision: {decision.attrs['word']}: {decision.attrs['statement']}")
        names, said = decision["endpoint"].values, decision["statement"].values
        found += [f"{name}: {text}" for name, text in zip(names, said, strict=True)]
        found.append(
            f"Holm over {decision.attrs['tests']} estimable primaries, {decision.attrs['family']}"
        )
    if CHARACTER in result:
        found.append(f"what the verdicts do: {result[CHARACTER].attrs['statement']}")
    if "step_choice" in result:
        found.append(f"step choice: {result['step_choice'].attrs['statement']}")
    if LOCALIZATION in result:
        found.append(f"localization: {result[LOCALIZATION].attrs['statement']}")
    if "numerical_floor" in result:
        floor = result["numerical_floor"].sel(quantity="shift")
        found.append(
            f"numerical floor: q99 of |difference| of shifts between two row plans "
            f"{float(floor['q99']):.2g} nats, over {int(floor['n'])} tokens; checks the machine"
        )
    return found


def _decided(found: xr.Dataset) -> list[Row]:
    """Write the decision: its word, then every endpoint with p, or why it is not estimable."""
    rows = [Row(DECISION, "word", str(found.attrs["word"]), "", "", "", "")]
    for endpoint in found["endpoint"].values:
        one = found.sel(endpoint=endpoint)
        p = float(one["p"])
        if np.isnan(p):
            rows.append(Row(DECISION, str(endpoint), str(one["statement"].item()), "", "", "", ""))
            continue
        low, high = one["interval"].values
        parts = [f"{float(one['estimate']):.3f} [{low:.3f}, {high:.3f}]", f"p {p:.3g}"]
        parts.append(f"Holm {float(one['p_holm']):.3g}")
        if not np.isnan(one["smallest_p"]):
            parts.append(f"smallest reachable {float(one['smallest_p']):.3g}")
        counts = ", ".join(
            f"{int(one[name])} {name.removeprefix('n_')}"
            for name in ("n_clusters", "n_rollouts", "n_tokens")
            if int(one[name]) >= 0
        )
        rows.append(Row(DECISION, str(endpoint), ", ".join(parts), "", "", "1", counts))
    return rows


def _left_out(found: xr.Dataset) -> list[Row]:
    """Write the endpoints without each generator, one line each."""
    rows = []
    for name in found["left_out"].values:
        one = found.sel(left_out=name)
        parts = [
            f"{endpoint} {value:.3f}"
            for endpoint, value in one["estimate"].to_series().items()
            if not np.isnan(value)
        ]
        rows.append(
            Row(LEFT_OUT, str(name), ", ".join([*parts, str(one["word"].item())]), *[""] * 4)
        )
    return rows


def _permuted(found: xr.Dataset) -> list[Row]:
    """Write what kinds have beyond permuted kinds, its standard deviation and p over kinds."""
    rows = []
    for measure, kind in itertools.product(found["measure"].values, found["kind"].values):
        one = found.sel(measure=measure, kind=kind)
        said = [
            "not estimable"
            if np.isnan(one["p"].values[term])
            else f"{float(one['excess'][term]):.4f} (sd {float(one['error'][term]):.4f}), "
            f"p {float(one['p_adjusted'][term]):.2g}"
            for term in range(one.sizes["term"])
        ]
        counts = f"{int(one['n_tokens'])} tokens, {int(one['exchangeable'])} exchangeable"
        verdict, placebo, difference = said
        name = f"{measure} {kind}"
        rows.append(Row(PERMUTED, name, verdict, placebo, difference, "nats", counts))
    return rows


def _row(section: str, one: xr.Dataset, lead: list[str]) -> Row:
    """Write one line."""
    name = " ".join(str(one[dim].item()) for dim in lead)
    unit = str(one["unit"].item()) if "unit" in one.coords else "1"
    terms = [one] if "term" not in one.dims else [one.isel(term=i) for i in range(3)]
    values = [_value(term, unit) for term in terms] + ["", "", ""]
    return Row(section, name, values[0], values[1], values[2], unit, _counts(terms[0]))


def _counts(one: xr.Dataset) -> str:
    """Problem texts, rollouts and tokens behind an estimate, as far as they are known."""
    counts = []
    for label in ("n_clusters", "n_rollouts", "n_tokens"):
        number = one[label].item() if label in one else one.attrs.get(label)
        if number is not None:
            counts.append(f"{float(number):.0f} {label.removeprefix('n_')}")
    return ", ".join(counts)


def _value(one: xr.Dataset, unit: str) -> str:
    """Write an estimate with its interval, or why there is none."""
    digits = 4 if unit == "nats" else 3
    estimate = float(one["estimate"])
    if np.isnan(estimate):
        return "not estimable"
    low, high = one["interval"].values
    if np.isnan(low):
        return f"{estimate:.{digits}f} [{Method(int(one['method'])).name.lower()}]"
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
