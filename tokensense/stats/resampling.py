"""Intervals by resampling problems: one-stage cluster bootstrap, t for few problems, nothing below.

Reads  sums (cluster, ...): what each problem text adds to the totals that a statistic is made of.
Gives  Estimates: estimate, low, high, standard error, method and number of clusters of each output.
Sign   none of its own: limits are in the unit of the statistic.

The unit of evidence is the problem *text*. Whole problems are drawn with replacement, with all
their rollouts and tokens, and nothing is drawn inside them: a second stage within problems makes
intervals too wide (Field & Welsh 2007, JRSS B 69, 369). A statistic must be a
function of totals over problems, so that one resample is one row of a matrix product. Everything
computed under one `Resampling` sees the same draws, so differences between outputs are paired.

clusters   interval
>= 20      percentile bootstrap, its tails widened from the normal's to those of Student's t with
           n / (n - 1) for the missing degree of freedom (Hesterberg 2015, Am. Stat. 69, 371): the
           share left out on each side is Phi(-sqrt(n / (n - 1)) t). Plain percentiles at 95 % cover
           .92 at 20 to 30 problems, these .94; from 200 on the two hardly differ. A correlation
           under strong problem effects is skewed: .91 at 30 problems, .93 from 60 on.
8 to 19    estimate +- Student t times the standard error of the problem values, which are the
           jackknife's: n * theta - (n - 1) * theta(without that problem). For a mean over equally
           large problems they are the problem means themselves; for a ratio or a correlation they
           keep the estimand, which an average of per-problem ratios would not.
< 8        none

Where there is no interval, `method` says why and the limits are NaN.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float, Int, Int8, Int64, Shaped
from scipy.stats import norm
from scipy.stats import t as student

from tokensense.checks import require_range
from tokensense.errors import SchemaError, StatisticsError

BOOTSTRAP_FROM = 20
T_FROM = 8
# More resamples without a value than this share, and the percentiles of the rest say nothing.
LOST_SHARE = 0.01
# Elements of the largest array of one batch of resamples: 2**22 doubles are 32 MiB.
BATCH_ELEMENTS = 2**22

Statistic = Callable[[Shaped[np.ndarray, "..."]], Shaped[np.ndarray, "..."]]


class Method(IntEnum):
    """How an interval was made, or why there is none."""

    BOOTSTRAP = 0
    T_INTERVAL = 1
    NONE_FEW_PROBLEMS = 2
    NONE_UNDEFINED = 3
    NONE_NO_VARIATION = 4
    NONE_UNSTABLE = 5


REASONS: dict[Method, str] = {
    Method.BOOTSTRAP: "(widened) percentile interval of a one-stage bootstrap of problem texts",
    Method.T_INTERVAL: f"fewer than {BOOTSTRAP_FROM} problem texts: t interval on problem values",
    Method.NONE_FEW_PROBLEMS: f"not estimable: fewer than {T_FROM} problem texts, no interval",
    Method.NONE_UNDEFINED: "not estimable: no value (no token of this sort, or no variation)",
    Method.NONE_NO_VARIATION: "no interval: every resample gives the same value",
    Method.NONE_UNSTABLE: f"no interval: over {LOST_SHARE:.0%} of the resamples have no value",
}


@dataclass(frozen=True)
class Resampling:
    """Which problems each resample holds: fixed by the number of clusters and the seed alone.

    Attributes:
        clusters: distinct problem texts.
        resamples: draws of that many problems with replacement.
        seed: of the generator; equal plans give equal draws, whatever they are used for.
    """

    clusters: int
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            SchemaError: no cluster, or fewer than 100 resamples.
        """
        require_range("clusters", float(self.clusters), 1.0, math.inf)
        require_range("resamples", float(self.resamples), 100.0, math.inf)

    def counts(
        self, *, elements: int = BATCH_ELEMENTS
    ) -> Iterator[Float[np.ndarray, "draw cluster"]]:
        """How often each cluster occurs in each resample, in batches.

        Args:
            elements: bound on the numbers of one batch; the draws do not depend on it.

        Yields:
            Batches that make up `resamples` rows; each row sums to `clusters`.
        """
        generator = np.random.default_rng(self.seed)
        size = max(1, elements // self.clusters)
        for start in range(0, self.resamples, size):
            rows = min(size, self.resamples - start)
            drawn = generator.integers(0, self.clusters, size=(rows, self.clusters))
            drawn += np.arange(rows)[:, None] * self.clusters
            flat = np.bincount(drawn.ravel(), minlength=rows * self.clusters)
            yield flat.reshape(rows, self.clusters).astype(np.float64)


@dataclass(frozen=True)
class Draws:
    """A statistic on the sample, on every resample, and on the sample without each problem.

    Attributes:
        estimate: (*output), on the whole sample.
        values: (draw, *output), on each resample; NaN where it is not defined.
        pseudo: (cluster, *output), jackknife pseudo-values, NaN for problems without a part in the
            output; no rows where every output has clusters enough for the bootstrap.
        clusters: (*output), problems that have a part in the output.
    """

    estimate: Float[np.ndarray, "*output"]
    values: Float[np.ndarray, " draw *output"]
    pseudo: Float[np.ndarray, " cluster *output"]
    clusters: Int64[np.ndarray, "*output"]


@dataclass(frozen=True)
class Estimates:
    """Point, interval and provenance of every output of a statistic, in the unit of the statistic.

    Attributes:
        estimate: on the whole sample.
        low: lower limit, NaN where `method` gives none.
        high: upper limit.
        error: standard error, NaN where there is no interval.
        method: a `Method`.
        clusters: problems that have a part in the output.
        lost: resamples without a value.
    """

    estimate: Float[np.ndarray, "*output"]
    low: Float[np.ndarray, "*output"]
    high: Float[np.ndarray, "*output"]
    error: Float[np.ndarray, "*output"]
    method: Int8[np.ndarray, "*output"]
    clusters: Int64[np.ndarray, "*output"]
    lost: Int64[np.ndarray, "*output"]

    def part(self, place: int) -> "Estimates":
        """One entry of the first dim of the outputs, where several quantities were put together.

        Args:
            place: of the entry.
        """
        return Estimates(*(np.asarray(getattr(self, f.name)[place]) for f in fields(self)))


def cluster_sums(
    values: Shaped[np.ndarray, " item *moment"],
    cluster: Int[np.ndarray, " item"],
    *,
    clusters: int,
) -> Float[np.ndarray, " cluster *moment"]:
    """Add up the rows of each cluster.

    Args:
        values: one row an item (rollout, or pair of rollouts), in the unit of the moment.
        cluster: which cluster an item belongs to, 0 to clusters - 1.
        clusters: number of clusters; one without items gives zeros.

    Raises:
        SchemaError: a cluster number is out of range.
    """
    if cluster.size and not (cluster.min() >= 0 and cluster.max() < clusters):
        raise SchemaError(
            f"`cluster` needs numbers from 0 to {clusters - 1}; it has {cluster.min()} to "
            f"{cluster.max()}. Number the problem texts with np.unique(..., return_inverse=True)."
        )
    sums = np.zeros((clusters, *values.shape[1:]))
    np.add.at(sums, cluster, values)
    return sums


def resample(
    sums: Float[np.ndarray, " cluster *moment"],
    statistic: Statistic,
    *,
    plan: Resampling,
    present: Bool[np.ndarray, " cluster *output"],
) -> Draws:
    """Compute a statistic on the sample, on the resamples, and without each problem.

    Args:
        sums: what each problem adds; all finite.
        statistic: totals (row, *moment) -> values (row, *output); NaN where not defined, and no
            warning. It must be a function of the totals alone.
        plan: the draws.
        present: whether a problem has a part in an output.

    Raises:
        SchemaError: sums, plan and `present` disagree in shape.
        StatisticsError: a sum is not finite.
    """
    if sums.shape[0] != plan.clusters or present.shape[0] != plan.clusters:
        raise SchemaError(
            f"`sums` and `present` need the {plan.clusters} clusters of the plan in their first "
            f"dim; they have {sums.shape[0]} and {present.shape[0]}. Make all three from the same "
            "problems."
        )
    if not np.isfinite(sums).all():
        raise StatisticsError(
            "`sums` needs finite numbers; cluster "
            f"{int(np.argwhere(~np.isfinite(sums))[0][0])} has NaN or infinity. Leave out what was "
            "not scored before adding up."
        )
    flat = sums.reshape(sums.shape[0], -1)
    moments = sums.shape[1:]
    # The same addition for the point as for equal columns elsewhere: equal sums stay equal bits.
    total = flat.sum(axis=0).reshape(1, *moments)
    estimate = statistic(total)[0]
    if present.shape[1:] != estimate.shape:
        raise SchemaError(
            f"`present` needs the outputs {estimate.shape} of the statistic behind its first dim; "
            f"it has {present.shape[1:]}. Give one truth value for each problem and output."
        )
    width = max(plan.clusters, flat.shape[1], 1)
    batches = plan.counts(elements=BATCH_ELEMENTS * plan.clusters // width)
    values = np.concatenate(
        [statistic((count @ flat).reshape(len(count), *moments)) for count in batches]
    )
    clusters = present.sum(axis=0).astype(np.int64)
    pseudo = _pseudo_values(sums, statistic, total, estimate=estimate, present=present)
    return Draws(estimate, values, pseudo, clusters)


def intervals(draws: Draws, *, level: float = 0.95) -> Estimates:
    """Turn draws into intervals, by the number of problems behind each output.

    Args:
        draws: of `resample`.
        level: coverage wanted, in (0, 1); two-sided, equal tails.

    Raises:
        SchemaError: `level` is outside (0, 1).
    """
    require_range("level", level, 1e-6, 1 - 1e-6)
    shape = draws.estimate.shape
    estimate, clusters = draws.estimate.ravel(), draws.clusters.ravel()
    values = draws.values.reshape(len(draws.values), -1)
    lost = np.count_nonzero(~np.isfinite(values), axis=0)
    method = _methods(estimate, values, clusters=clusters, lost=lost)
    low, high, error = (np.full(estimate.size, np.nan) for _ in range(3))
    enough = np.maximum(clusters, 2)
    quantile = student.ppf((1 + level) / 2, enough - 1)
    tail = norm.cdf(-np.sqrt(enough / (enough - 1)) * quantile)
    for output in np.flatnonzero(method == Method.BOOTSTRAP):
        column = values[:, output]
        kept = column[np.isfinite(column)]
        low[output], high[output] = np.quantile(kept, (tail[output], 1 - tail[output]))
        error[output] = kept.std(ddof=1)
    pseudo = draws.pseudo.reshape(len(draws.pseudo), -1) if draws.pseudo.size else None
    for output in np.flatnonzero(method == Method.T_INTERVAL):
        assert pseudo is not None
        column = pseudo[:, output]
        kept = column[np.isfinite(column)]
        if kept.size < clusters[output]:  # without one of its problems there is no value
            method[output] = Method.NONE_UNSTABLE
            continue
        error[output] = kept.std(ddof=1) / math.sqrt(kept.size)
        reach = float(quantile[output]) * error[output]
        low[output], high[output] = estimate[output] - reach, estimate[output] + reach
    parts = (low, high, error, method, clusters, lost.astype(np.int64))
    return Estimates(draws.estimate, *(part.reshape(shape) for part in parts))


def _methods(
    estimate: Float[np.ndarray, " output"],
    values: Float[np.ndarray, "draw output"],
    *,
    clusters: Int64[np.ndarray, " output"],
    lost: Int[np.ndarray, " output"],
) -> Int8[np.ndarray, " output"]:
    """Say for each output how its interval is made, the weightiest reason against one last."""
    method = np.full(estimate.size, int(Method.BOOTSTRAP), dtype=np.int8)
    method[clusters < BOOTSTRAP_FROM] = Method.T_INTERVAL
    method[(lost > LOST_SHARE * len(values)) & (clusters >= BOOTSTRAP_FROM)] = Method.NONE_UNSTABLE
    finite = np.isfinite(values)
    spread = np.where(finite, values, -np.inf).max(axis=0, initial=-np.inf)
    spread = spread - np.where(finite, values, np.inf).min(axis=0, initial=np.inf)
    # Rounding alone moves a constant by some units in the last place, and a difference of equals by
    # some of what it is a difference of; inputs of single precision cannot vary by less than that.
    still = spread <= 1e-12 * np.maximum(np.abs(np.nan_to_num(estimate)), 1e-3)
    method[still] = Method.NONE_NO_VARIATION
    method[clusters < T_FROM] = Method.NONE_FEW_PROBLEMS
    method[~np.isfinite(estimate)] = Method.NONE_UNDEFINED
    return method


def _pseudo_values(
    sums: Float[np.ndarray, " cluster *moment"],
    statistic: Statistic,
    total: Float[np.ndarray, " 1 *moment"],
    *,
    estimate: Float[np.ndarray, "*output"],
    present: Bool[np.ndarray, " cluster *output"],
) -> Float[np.ndarray, " kept *output"]:
    """Jackknife pseudo-values, where some output has too few clusters for the bootstrap."""
    clusters = present.sum(axis=0)
    if not ((clusters >= T_FROM) & (clusters < BOOTSTRAP_FROM)).any():
        return np.empty((0, *estimate.shape))
    without = np.stack([statistic(total - row)[0] for row in sums])
    pseudo = clusters * estimate - (clusters - 1) * without
    return np.where(present, pseudo, np.nan)
