"""Primary endpoint E2, informative: does the summed contrast tell right responses from wrong ones?

Reads  contrasts of the verdict and placebo pairs, rewards, problems, generators.
Gives  within-problem AUROC of the summed contrast as a triple, controls beside it, and a word.
Sign   above .5: the right response of a problem has the larger score.

Score     S = sum over the tokens of a response of the mean over wordings of d (in a coherent model
          the log-odds gain of "right" is 2 S). Its mean over tokens is secondary.
AUROC     within problems, as in `auroc`: balanced over pairs of generators, and plain.
Controls  `generator`: accuracy of the response's generator on the *other* problem texts, so that
          a response does not predict itself; a generator without other problems ties. It is held
          fixed in the resamples. `length`: number of tokens. And each placebo family by itself: the
          two words of a placebo have no right order, so its mean over families leans to .5.
Word      from the 90 % interval (two one-sided tests at 5 %) of the balanced AUROC of S:
          informative  above .56;  equivalent  inside (.44, .56);  reversed  below .44;
          inconclusive  otherwise;  not_estimable  fewer than 300 mixed problems, or no interval.
          The numbers are given even then, as a description.

Only rollouts that are comparable under every pair of the triple take part.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Shaped
from scipy.stats import norm

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.auroc import (
    ORIENTATIONS,
    Contests,
    Orientations,
    auroc,
    contest_sums,
    contests,
    generator_accuracy,
    orientations,
)
from tokensense.stats.pairs import Terms
from tokensense.stats.resampling import (
    Draws,
    Estimates,
    Method,
    Resampling,
    intervals,
    resample,
)
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import contrast

MARGIN = 0.06
MIXED_NEEDED = 300
TOST_LEVEL = 0.90
TERMS = ("verdict", "placebo", "difference")
CONTROLS = ("generator", "length")


def verdict_word(low: float, high: float, *, mixed: int) -> str:
    """Put the 90 % interval of the balanced AUROC into a word.

    Args:
        low: lower limit, NaN where there is none.
        high: upper limit.
        mixed: problems with a right and a wrong response.
    """
    if mixed < MIXED_NEEDED or math.isnan(low):
        return "not_estimable"
    if low > 0.5 + MARGIN:
        return "informative"
    if high < 0.5 - MARGIN:
        return "reversed"
    if low > 0.5 - MARGIN and high < 0.5 + MARGIN:
        return "equivalent"
    return "inconclusive"


def informative(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> tuple[xr.Dataset, xr.Dataset] | None:
    """Estimate E2 with its controls.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        plan: the draws.
        attrs: for both Datasets.

    Returns:
        The triple, dims (statistic, term, bound), and the controls, (statistic, score, bound),
        each with `interval_90`; attrs `word`, `statement`, counts and detectable difference. None
        where no problem has a right and a wrong response.
    """
    used = np.ones(len(sample.length), dtype=bool)
    for index in (*terms.verdict, *(i for members in terms.placebo.values() for i in members)):
        used &= sample.usable(pairs[index])
    rows = np.flatnonzero(used)
    met = contests(sample.reward[rows], sample.problem[rows])
    if not met.weight.size:
        return None
    faced = orientations(met, sample.generator[rows])
    scores = _scores(sample, pairs, terms=terms, rows=rows)
    sums = contest_sums(
        scores, sample.cluster[rows], met=met, faced=faced, clusters=sample.clusters
    )
    draws = _draws(sums, faced, families=len(terms.placebo), plan=plan)
    counts = _counts(sample, rows, met=met, faced=faced)
    return _results(draws, counts, families=tuple(terms.placebo), attrs=attrs)


def _scores(
    sample: Sample, pairs: Sequence[Pair], *, terms: Terms, rows: Int64[np.ndarray, " used"]
) -> Float[np.ndarray, " used score"]:
    """Scores of the rollouts used: sums of verdict and placebo families, their means, controls."""
    length = sample.length[rows]
    tokens = broadcast(np.isin(np.arange(len(sample.length)), rows), sample.length)
    summed = []
    for members in (terms.verdict, *terms.placebo.values()):
        mean = np.mean(
            [
                contrast(sample.shift(pairs[i].positive), sample.shift(pairs[i].negative))[tokens]
                for i in members
            ],
            axis=0,
        )
        summed.append(segment_sum(mean, length))
    accuracy = generator_accuracy(sample.generator[rows], sample.reward[rows], sample.cluster[rows])
    means = [total / length for total in summed]
    return np.stack([*summed, *means, accuracy, length.astype(np.float64)], axis=1)


def _draws(
    sums: Float[np.ndarray, " cluster score_1 orientation"],
    faced: Orientations,
    *,
    families: int,
    plan: Resampling,
) -> Draws:
    """Resample all AUROCs; outputs (score, orientation), triples of sum and mean first."""

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        values = auroc(totals, faced)
        found = []
        for start in (0, 1 + families):
            verdict = values[:, start]
            placebo = np.full_like(verdict, np.nan)
            if families:
                placebo = values[:, start + 1 : start + 1 + families].mean(axis=1)
            found += [verdict, placebo, verdict - placebo]
        found += [values[:, -2], values[:, -1]]
        found += [values[:, 1 + index] for index in range(families)]
        return np.stack(found, axis=1)

    outputs = 2 * len(TERMS) + len(CONTROLS) + families
    weights = sums[:, -1]
    total = weights.sum(axis=0)
    facing = np.zeros(faced.total, dtype=bool)
    both = (total[faced.forth] > 0) & (total[faced.back] > 0)
    facing[faced.forth[both]] = facing[faced.back[both]] = True
    part = np.stack([(weights[:, facing] > 0).any(axis=1), (weights > 0).any(axis=1)], axis=1)
    present: Bool[np.ndarray, " cluster output orientation"] = np.repeat(
        part[:, None], outputs, axis=1
    )
    return resample(sums, statistic, plan=plan, present=present)


def _counts(
    sample: Sample, rows: Int64[np.ndarray, " used"], *, met: Contests, faced: Orientations
) -> dict[str, int]:
    """Numbers at each level."""
    taking = np.unique(np.concatenate([met.right, met.wrong]))
    weight = np.bincount(faced.code, minlength=faced.total)
    alone = (weight[faced.forth] > 0) != (weight[faced.back] > 0)
    return {
        "n_mixed_problems": len(np.unique(sample.problem[rows][met.right])),
        "n_problems": len(np.unique(sample.problem[rows])),
        "n_clusters": len(np.unique(sample.cluster[rows][met.right])),
        "n_rollouts": len(taking),
        "n_rollouts_left_out": len(sample.length) - len(rows),
        "n_rollouts_without_reward": int(np.isnan(sample.reward[rows]).sum()),
        "n_tokens": int(sample.length[rows][taking].sum()),
        "n_contests": len(met.weight),
        "n_contests_one_orientation": int(
            weight[faced.forth[alone]].sum() + weight[faced.back[alone]].sum()
        ),
        "n_generators": len(np.unique(sample.generator[rows][taking])),
    }


def _results(
    draws: Draws,
    counts: Mapping[str, int],
    *,
    families: tuple[str, ...],
    attrs: Mapping[str, object],
) -> tuple[xr.Dataset, xr.Dataset]:
    """Lay the estimates out and put the first into a word."""
    wide, narrow = intervals(draws), intervals(draws, level=TOST_LEVEL)
    low, high = float(narrow.low[0, 0]), float(narrow.high[0, 0])
    error = float(narrow.error[0, 0])
    if narrow.method[0, 0] == Method.NONE_NO_VARIATION:  # right beats wrong in every problem, say
        low = high = float(narrow.estimate[0, 0])
    mixed = counts["n_mixed_problems"]
    word = verdict_word(low, high, mixed=mixed)
    statement = f"margin {MARGIN}, 90 % interval, {mixed} mixed problems"
    if word == "not_estimable":
        statement = (
            f"not estimable: {mixed} mixed problems, {MIXED_NEEDED} needed; the numbers are a "
            "description, not a test"
        )
    every = {
        **attrs,
        **counts,
        "word": word,
        "statement": statement,
        "margin": MARGIN,
        # Two-sided 5 % test, power .8; and power of the equivalence test if the truth is .5.
        "detectable_difference": float(norm.ppf(0.975) + norm.ppf(0.8)) * error,
        "equivalence_power": max(0.0, float(2 * norm.cdf(MARGIN / error + norm.ppf(0.05)) - 1))
        if error > 0
        else math.nan,
    }
    names = ("auroc_sum_balanced", "auroc_sum_plain", "auroc_mean_balanced", "auroc_mean_plain")
    scores = (*CONTROLS, *families)

    def triple(part: np.ndarray) -> np.ndarray:
        return part[:6].reshape(2, 3, 2).swapaxes(1, 2).reshape(4, 3)

    def control(part: np.ndarray) -> np.ndarray:
        return part[6:].T

    return (
        _laid_out(wide, narrow, triple, coords={"statistic": names, "term": TERMS}, attrs=every),
        _laid_out(
            wide,
            narrow,
            control,
            coords={"statistic": tuple(f"auroc_{name}" for name in ORIENTATIONS), "score": scores},
            attrs=every,
        ),
    )


def _laid_out(
    wide: Estimates,
    narrow: Estimates,
    shape: Callable[[np.ndarray], np.ndarray],
    *,
    coords: Mapping[str, Sequence[str]],
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Cut outputs to a Dataset and set the 90 % interval beside the 95 % one."""
    cut = Estimates(**{name: shape(value) for name, value in vars(wide).items()})
    found = dataset(cut, coords, attrs=attrs)
    limits = np.stack([shape(narrow.low), shape(narrow.high)], axis=-1)
    return found.assign(
        interval_90=((*coords, "bound"), limits, {"description": "as `interval`, level .90"})
    ).assign_coords(unit=("statistic", ["1"] * len(coords["statistic"])))
