"""Shifts under single conditions: is the verdicts' common part just "one paragraph more"?

Reads  Sample, its pairs, the triple's terms; conditions without a level, as neutral paragraphs.
Gives  (statistic, condition): sizes, relation to surprisal, correlation with the verdicts' m.
Sign   positive shift: the condition makes the token likelier.

Compare `mean_absolute_shift` with the triple's. A correlation with m near 1 says that what both
verdicts do together, any paragraph does. Ranks and winsor limits are fixed on the full sample.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from tokensense.schema import NO_LEVEL
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import correlation, ratio
from tokensense.stats.pairs import Terms
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import (
    common,
    product_columns,
    ranks,
    standardized_shift,
    winsorized,
)

STATISTICS: dict[str, tuple[str, str]] = {
    "mean_shift": ("nats", "mean shift, with sign"),
    "mean_absolute_shift": ("nats", "mean of |shift|"),
    "mean_standardized_shift": ("nats", "mean of |shift| / ||onehot - p||, distance at least .001"),
    "shift_to_surprisal": ("1", "Spearman correlation of |shift| with surprisal"),
    "correlation_with_common": ("1", "Pearson correlation with the verdicts' m, winsorized 1-99 %"),
    "rank_correlation_with_common": ("1", "Spearman correlation with the verdicts' m"),
}


def single_conditions(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset | None:
    """Describe every condition without a level.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        terms: of `terms_of`; m is the mean over its verdict pairs.
        plan: the draws.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, condition, bound), over rollouts comparable under the condition and all
        verdict pairs; None where there is no such condition.
    """
    usable = np.logical_and.reduce([sample.usable(pairs[i]) for i in terms.verdict])
    single = [
        index
        for index, level in enumerate(sample.labels["level"])
        if level == NO_LEVEL and index != sample.base and (sample.comparable[index] & usable).any()
    ]
    if not single:
        return None
    together = np.mean(
        [
            common(sample.shift(pairs[i].positive), sample.shift(pairs[i].negative))
            for i in terms.verdict
        ],
        axis=0,
    )
    columns: tuple[str, ...] = ()
    sums, kept = [], []
    for index in single:
        keep = sample.comparable[index] & usable
        table = {
            name: segment_sum(one, sample.length[keep])
            for name, one in _columns(sample, index, together, keep)
        }
        columns, rows = tuple(table), np.stack(list(table.values()), axis=1)
        sums.append(cluster_sums(rows, sample.cluster[keep], clusters=sample.clusters))
        kept.append((int(keep.sum()), int(sample.length[keep].sum())))
    stacked = np.stack(sums, axis=1)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return _values(totals, columns)

    present = np.repeat(
        (stacked[:, :, columns.index("tokens")] > 0)[:, None], len(STATISTICS), axis=1
    )
    found = intervals(resample(stacked, statistic, plan=plan, present=present))
    names = sample.labels["condition"][single].tolist()
    result = dataset(found, {"statistic": tuple(STATISTICS), "condition": names}, attrs=attrs)
    return result.assign(
        n_rollouts=("condition", [rollouts for rollouts, _ in kept]),
        n_tokens=("condition", [tokens for _, tokens in kept]),
    ).assign_coords(
        unit=("statistic", [unit for unit, _ in STATISTICS.values()]),
        meaning=("statistic", [meaning for _, meaning in STATISTICS.values()]),
    )


def _columns(
    sample: Sample, index: int, together: Float[np.ndarray, " token"], keep: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Per-token numbers of one condition over the rollouts kept, a few at a time."""
    tokens = broadcast(keep, sample.length)
    shift = sample.shift(index)[tokens]
    size, verdicts = np.abs(shift), together[tokens]
    standard = standardized_shift(size, sample.distance[tokens])
    known = ~np.isnan(standard)
    yield "tokens", np.ones_like(shift)
    yield "shift", shift
    yield "absolute", size
    yield "standard", np.where(known, standard, 0.0)
    yield "standard_tokens", known.astype(np.float64)
    yield from product_columns("surprisal", ranks(size), ranks(sample.surprisal[tokens])).items()
    yield from product_columns("common", winsorized(shift), winsorized(verdicts)).items()
    yield from product_columns("rank", ranks(shift), ranks(verdicts)).items()


def _values(
    totals: Float[np.ndarray, " row condition column"], columns: Sequence[str]
) -> Float[np.ndarray, " row statistic condition"]:
    """Statistics from totals, in the order of STATISTICS."""
    m = dict(zip(columns, np.moveaxis(totals, -1, 0), strict=True))
    values = [
        ratio(m["shift"], m["tokens"]),
        ratio(m["absolute"], m["tokens"]),
        ratio(m["standard"], m["standard_tokens"]),
        correlation(m, "surprisal"),
        correlation(m, "common"),
        correlation(m, "rank"),
    ]
    return np.stack(values, axis=1)
