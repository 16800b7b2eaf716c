"""Every description as a triple: verdict, placebo pair, difference, with paired intervals.

Reads  Sample, its pairs, the wording floor.
Gives  the triple (statistic, term) and the same for each family (statistic, family).
Sign   as in `catalogue`; difference = verdict - placebo.

A statistic is computed for each pair of conditions by itself. The verdict is its mean over frames
and wordings; the placebo is the mean over placebo families of the mean over the frames of each.
Both hold "for these wordings", since only problems are resampled. Weighting `token` pools all
tokens, so that long responses count more; `rollout` gives every response the same weight.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import CATALOGUE
from tokensense.stats.pairs import Terms
from tokensense.stats.resampling import Estimates, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import NO_TONE, Pair, Sample
from tokensense.stats.shifts import Evidence, token_columns

VERDICT_TERM, PLACEBO_TERM, DIFFERENCE_TERM = TERMS = ("verdict", "placebo", "difference")
WEIGHTINGS = ("token", "rollout")
USUAL_PLACEMENT = "user_end"

# Pairs to average: over the pairs of each inner tuple first, then over the tuples.
Group = tuple[tuple[int, ...], ...]


class PairSums(NamedTuple):
    """What each problem text adds to the statistics of each pair.

    Attributes:
        sums: (cluster, pair, column) by weighting.
        columns: names of the columns.
        used: (rollout, pair), whether the rollout is comparable.
    """

    sums: dict[str, Float[np.ndarray, " cluster pair column"]]
    columns: tuple[str, ...]
    used: Bool[np.ndarray, " rollout pair"]


def pair_sums(
    sample: Sample, pairs: Sequence[Pair], *, floor: Float[np.ndarray, " token"]
) -> PairSums:
    """Add up the columns of every pair over the comparable tokens of each problem text.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        floor: wording floor of every token, nats, NaN where there is none.
    """
    used = np.stack([sample.usable(pair) for pair in pairs], axis=1)
    columns: tuple[str, ...] = ()
    found: dict[str, list[np.ndarray]] = {name: [] for name in WEIGHTINGS}
    for index, pair in enumerate(pairs):
        keep = used[:, index]
        tokens = broadcast(keep, sample.length)
        length = sample.length[keep]
        evidence = Evidence(
            positive=sample.shift(pair.positive)[tokens],
            negative=sample.shift(pair.negative)[tokens],
            surprisal=sample.surprisal[tokens],
            distance=sample.distance[tokens],
            floor=floor[tokens],
            length=length,
        )
        # Each column goes as soon as it is summed.
        table = {name: segment_sum(one, length) for name, one in token_columns(evidence)}
        columns, rows = tuple(table), np.stack(list(table.values()), axis=1)
        weights = {"token": np.ones(len(length)), "rollout": 1.0 / length}
        for name in WEIGHTINGS:
            found[name].append(
                cluster_sums(
                    rows * weights[name][:, None], sample.cluster[keep], clusters=sample.clusters
                )
            )
    sums = {name: np.stack(parts, axis=1) for name, parts in found.items()}
    return PairSums(sums, columns, used)


def family_groups(sample: Sample, pairs: Sequence[Pair]) -> dict[str, Group]:
    """Put pairs of one family, tone and placement together.

    Args:
        sample: for the rollouts that a pair can use; pairs without any are left out.
        pairs: of `pairs_of`.

    Returns:
        Label -> group, in the order of the labels. Tone and an unusual placement are in the label.
    """
    found: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        if sample.usable(pair).any():
            parts = [pair.family]
            parts += [pair.tone] * (pair.tone != NO_TONE)
            parts += [pair.placement] * (pair.placement != USUAL_PLACEMENT)
            found.setdefault(":".join(parts), []).append(index)
    return {name: (tuple(found[name]),) for name in sorted(found)}


def describe_pairs(
    sums: PairSums,
    groups: Mapping[str, Group],
    *,
    terms: Terms,
    weighting: str,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> tuple[xr.Dataset, xr.Dataset]:
    """Estimate every statistic of the catalogue for the triple and for each family.

    Args:
        sums: of `pair_sums`.
        groups: of `family_groups`.
        terms: of `terms_of`.
        weighting: `token` or `rollout`.
        plan: the draws.
        attrs: for both Datasets.

    Returns:
        The triple, dims (statistic, term, bound), and the families, (statistic, family, bound);
        `n_tokens` is the statistic's own denominator, mean over the pairs.
    """
    table = sums.sums[weighting]
    placebo: Group = tuple(terms.placebo.values())
    every: list[Group] = [(terms.verdict,), placebo, *groups.values()]

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        values = group_values(totals, sums.columns, groups=every)
        difference = values[..., :1] - values[..., 1:2]
        return np.concatenate([values[..., :2], difference, values[..., 2:]], axis=-1)

    present = _present(table, sums.columns, groups=every)
    found = intervals(resample(table, statistic, plan=plan, present=present))
    rollouts = _rollouts(sums.used, every)
    # Tokens are counted, whatever weight they have.
    tokens = _tokens(sums.sums["token"], sums.columns, groups=every)
    described = []
    for part, dim, labels in (
        (slice(0, 3), "term", TERMS),
        (slice(3, None), "family", tuple(groups)),
    ):
        counts = {
            "n_rollouts": ((dim,), rollouts[part]),
            "n_tokens": (("statistic", dim), tokens[:, part]),
        }
        result = dataset(
            _columns_of(found, part),
            {"statistic": tuple(CATALOGUE), dim: labels},
            attrs={**attrs, "weighting": weighting},
        ).assign(counts)
        described.append(_with_meaning(result))
    return described[0], described[1]


def group_values(
    totals: Float[np.ndarray, " row pair column"],
    columns: Sequence[str],
    *,
    groups: Sequence[Group],
) -> Float[np.ndarray, " row statistic group"]:
    """Statistics of every group of pairs from totals.

    Args:
        totals: sums of the columns over any set of problems.
        columns: their names.
        groups: pairs to average; an empty one gives NaN.

    Returns:
        Mean over inner tuples of the mean over their pairs; NaN where one of them has no value.
    """
    named = dict(zip(columns, np.moveaxis(totals, -1, 0), strict=True))
    values = [statistic.finish(named) for statistic in CATALOGUE.values()]
    return np.stack([averages(value, groups) for value in values], axis=1)


def averages(
    values: Float[np.ndarray, "*lead pair"], groups: Sequence[Group]
) -> Float[np.ndarray, "*lead group"]:
    """Average over the pairs of each inner tuple, then over the inner tuples of each group.

    Args:
        values: one a pair in the last dim.
        groups: pairs to average; an empty one gives NaN.
    """
    found = np.full((*values.shape[:-1], len(groups)), np.nan)
    for index, group in enumerate(groups):
        if group:
            inner = [values[..., list(members)].mean(axis=-1) for members in group]
            found[..., index] = np.mean(inner, axis=0)
    return found


def _present(
    table: Float[np.ndarray, " cluster pair column"],
    columns: Sequence[str],
    *,
    groups: Sequence[Group],
) -> Bool[np.ndarray, " cluster statistic output"]:
    """Whether a problem has a part in a statistic of a group; of the difference: in both sides."""
    found = []
    for statistic in CATALOGUE.values():
        filled = table[:, :, columns.index(statistic.denominator)] > 0
        parts = [
            filled[:, [pair for members in group for pair in members]].any(axis=1)
            for group in groups
        ]
        found.append(np.stack([*parts[:2], parts[0] & parts[1], *parts[2:]], axis=1))
    return np.stack(found, axis=1)


def _rollouts(used: Bool[np.ndarray, " rollout pair"], groups: Sequence[Group]) -> np.ndarray:
    """Rollouts that are comparable under some pair of a group; of the difference: on both sides."""
    parts = [
        used[:, [pair for members in group for pair in members]].any(axis=1) for group in groups
    ]
    return np.array([part.sum() for part in (*parts[:2], parts[0] & parts[1], *parts[2:])])


def _tokens(
    table: Float[np.ndarray, " cluster pair column"],
    columns: Sequence[str],
    *,
    groups: Sequence[Group],
) -> Float[np.ndarray, " statistic output"]:
    """Tokens in the denominator, mean over the pairs; of the difference: the smaller side."""
    total = table.sum(axis=0)
    rows = []
    for statistic in CATALOGUE.values():
        count = total[None, :, columns.index(statistic.denominator)]
        parts = np.nan_to_num(averages(count, groups)[0])
        rows.append([*parts[:2], min(parts[:2]), *parts[2:]])
    return np.array(rows)


def _columns_of(found: Estimates, part: slice) -> Estimates:
    """Keep some outputs of the second dim."""
    return Estimates(**{name: value[:, part] for name, value in vars(found).items()})


def _with_meaning(result: xr.Dataset) -> xr.Dataset:
    """Add unit and meaning of each statistic."""
    result = result.assign_coords(
        unit=("statistic", [statistic.units for statistic in CATALOGUE.values()]),
        meaning=("statistic", [statistic.meaning for statistic in CATALOGUE.values()]),
    )
    result["n_rollouts"].attrs = {"units": "1", "description": "rollouts that are comparable"}
    result["n_tokens"].attrs = {
        "units": "1",
        "description": "tokens in the denominator of the statistic, mean over the pairs",
    }
    return result
