"""Caption drafts: what a figure shows, its numbers with intervals and n, and what limits them.

Reads  what was drawn, and the attributes of the results.
Gives  shift_scatter, shift_by_kind, triples: one text a figure.
Sign   as in `panels`.

A draft says what a reader needs who sees the figure alone: units, what the placebo is, how
intervals were made, who wrote and who scored the tokens, and what was left out.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from tokensense.figures.density import LINEAR_WIDTH, PLACEBO, TERMS
from tokensense.figures.marks import counts_text, lacks_interval, number_text
from tokensense.figures.panels import DIFFERENCE, SHIFT_STATISTICS, TRIPLE_STATISTICS
from tokensense.schema import VERDICT

METHODS = {
    "bootstrap": "one-stage cluster bootstrap over problem texts",
    "t_interval": "t intervals on problem values (few problem texts)",
}
SIGN = "Positive shift: the condition makes the sampled token likelier than under base."


def shift_scatter(
    points: xr.Dataset, statistics: xr.Dataset, *, triple: xr.Dataset, dense: bool
) -> str:
    """Caption of the shift figure.

    Args:
        points: that were drawn, or counted in cells.
        statistics: as written above the panels.
        triple: result `triple`.
        dense: whether cells were drawn.
    """
    shown = {
        term: np.unique(points["family"].values[points["term"].values == term]).tolist()
        for term in TERMS
    }
    count = {term: int((points["term"].values == term).sum()) for term in TERMS}
    what = "Tokens per cell (mean over pairs, log color scale)" if dense else "One mark a token"
    parts = [
        "Shift of each token under the positive condition (z+) against its shift under the "
        "negative one (z−), nats. "
        f"Left: verdict pairs ({count[VERDICT]}). Right: placebo pairs, irrelevant words in the "
        f"same frames ({count[PLACEBO]}; {', '.join(shown[PLACEBO])}).",
        f"{what}; axes are asinh-scaled (near linear below {LINEAR_WIDTH:g} nats). "
        "Dashed: equal shifts. " + SIGN,
        *(_triple_sentence(triple, name, label) for name, label in SHIFT_STATISTICS.items()),
        _count_sentence(statistics.sel(statistic="correlation")),
        *_pairs_sentence(triple.attrs),
    ]
    return " ".join([*parts, *limits(triple, statistics)])


def shift_by_kind(shown: xr.Dataset, *, kind: xr.Dataset) -> str:
    """Caption of the figure of kinds.

    Args:
        shown: as drawn, dims (scale, kind, term).
        kind: result `kind`.
    """
    scales = {
        "mean": "mean |shift| (nats)",
        "log_ratio": "its ratio to that of all other tokens (raw)",
        "log_ratio_matched": "its ratio to that of tokens of other kinds in the same trace that "
        "were equally surprising (matched on surprisal)",
    }
    order = "; ".join(scales[str(scale)] for scale in shown["scale"].values)
    tokens = int(np.nansum(shown["n_tokens"].values))
    problems = int(np.nanmax(shown["n_clusters"].values, initial=0))
    parts = [
        f"How far each kind of token moves, verdict beside placebo. From left to right: {order}. "
        "|shift| is the mean of |z+| and |z−|.",
        f"n = {tokens:,} tokens of up to {problems:,} problem texts; tokens of each kind at the "
        "right, in brackets the share that has a partner of equal surprisal.",
    ]
    lost = _not_estimable(shown)
    if lost:
        parts.append(f"Not estimable: {lost}.")
    return " ".join([*parts, *limits(kind, shown)])


def triples(shown: xr.Dataset, *, triple: xr.Dataset) -> str:
    """Caption of the figure of triples.

    Args:
        shown: as drawn, dims (statistic, term).
        triple: result `triple`.
    """
    parts = [
        "Descriptions of the shifts. Left: verdict and placebo; right: verdict − placebo, paired "
        "by problem. Each row has its own axis.",
        *(
            _triple_sentence(triple, name, label.replace("\n", " "))
            for name, label in TRIPLE_STATISTICS.items()
        ),
        _count_sentence(shown.sel(statistic="correlation")),
        *_pairs_sentence(triple.attrs),
    ]
    return " ".join([*parts, *limits(triple, shown)])


def _triple_sentence(triple: xr.Dataset, name: str, label: str) -> str:
    """One statistic in words: verdict, placebo, difference."""
    one = triple.sel(statistic=name)
    numbers = [f"{term} {number_text(one.sel(term=term))}" for term in (*TERMS, DIFFERENCE)]
    return f"{label[0].upper()}{label[1:]}: {', '.join(numbers)}."


def _count_sentence(entries: xr.Dataset) -> str:
    """What verdict and placebo rest on; said once where it is the same."""
    texts = {term: " ".join(counts_text(entries.sel(term=term))) for term in TERMS}
    if len(set(texts.values())) == 1:
        return f"{texts[VERDICT]} under both."
    return "; ".join(f"{term}: {text}" for term, text in texts.items()) + "."


def _pairs_sentence(attrs: Mapping[object, object]) -> list[str]:
    """How many pairs the numbers rest on, where the result says so."""
    if "verdict_pairs" not in attrs or "placebo_families" not in attrs:
        return []
    verdict, families = _list(attrs["verdict_pairs"]), _list(attrs["placebo_families"])
    return [
        f"Numbers are means over all pairs: {len(verdict)} of verdicts, and those of "
        f"{len(families)} placebo families ({', '.join(families)})."
    ]


def _list(value: object) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else value
    return [str(item) for item in found] if isinstance(found, Sequence | np.ndarray) else []


def limits(result: xr.Dataset, shown: xr.Dataset) -> list[str]:
    """What stands at the end of every caption: intervals, policies, off-policy mark, statements.

    Args:
        result: whose attributes say it.
        shown: as drawn, with `estimate`, `low` and `method`.
    """
    attrs = result.attrs
    used = [METHODS[name] for name in METHODS if (shown["method"].values == name).any()]
    parts = []
    if used:
        level = f"{float(attrs.get('level', 0.95)):.0%}".replace("%", " %")
        draws = f", {int(attrs['resamples']):,} resamples" if "resamples" in attrs else ""
        parts.append(f"Intervals: {level}, {' and '.join(used)}{draws}.")
    if lacks_interval(shown):
        parts.append("† no interval could be made.")
    policy = f"Scored by {attrs['scored_by']}"
    sampled = ", ".join(_list(attrs.get("sampled_by", "[]")))
    if bool(attrs["off_policy"]):
        who = f"the tokens were sampled by {sampled}" if sampled else "who sampled is not known"
        parts.append(f"{policy}; off-policy: {who}.")
    else:
        parts.append(f"{policy}, which sampled the tokens.")
    parts += [f"{text[0].upper()}{text[1:]}." for text in _list(attrs.get("statements", "[]"))]
    return parts


def _not_estimable(shown: xr.Dataset) -> str:
    """Kinds and scales without a value, in words."""
    lost = []
    for scale in shown["scale"].values:
        part = shown["estimate"].sel(scale=scale)
        names = [
            str(name).replace("_", " ")
            for name in shown["kind"].values
            if not np.isfinite(part.sel(kind=name).values).all()
        ]
        if names:
            lost.append(f"{', '.join(names)} ({str(scale).replace('_', ' ')})")
    return "; ".join(lost)
