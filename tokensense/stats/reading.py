"""Primary endpoint E1, read: does the verdict's word move tokens alike in every sentence?

Reads  contrasts of the verdict and placebo pairs, each in several frames.
Gives  lambda of the verdict and of every placebo family, their difference, the verdict's rank.
Sign   lambda above 0: one and the same contrast shows in all frames; difference = verdict - placebo
       above 0: more than for irrelevant words.

Lambda     log[MS(level) / MS(level x frame)], crossed by token. With contrasts d of a token in F
           frames, mean square F mean(d)^2 against sum (d - mean(d))^2 / (F - 1); each is averaged
           over the tokens of a problem text and then over texts, which count once each. 0 is
           expected where frames have nothing in common.
Items      With one word pair a family, the F frames are sentences around it, and *any* word is
           consistent over sentences (a lambda of about 3 for verdicts and placebos alike): what
           the word means is not asked. Where the verdict and every family have K >= 2 pairs in each
           frame, the items are the frames x K, and lambda asks for what pairs of one meaning have
           in common: irrelevant pairs of a family have nothing. A frame that is drawn stands for
           one item. Families of unequal numbers of pairs: mean of the pairs' lambdas.
           The averages are taken before the log: that of one short trace's ratio is at the mercy of
           a few tokens, and the correction for drawn frames (`crossed`) can leave nothing to take
           the log of. `mean_of_logs`, the log by problem text first, stands beside it.
Rank       of the verdict among itself and m placebo families, 1 the largest lambda; p = rank /
           (m + 1), so that 1 / (m + 1) is the smallest reachable. Its null: the verdict's word is
           one more irrelevant word.
Resamples  problem texts and frames are both drawn from six frames on; below, problems alone, and
           the numbers hold "for these wordings". `first_share`: share of resamples in which the
           verdict is first. Interval: percentiles with tails widened for the smaller of the two
           numbers of units; none below 8 problem texts. `mean_of_logs` draws problems alone.

Only rollouts that are comparable under every pair of the triple take part, and only frames that
verdict and all families have.

Source   `statistics.md` 3.3, 3.4 of the project's notes; claims ledger, row 3.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.crossed import MeanSquares, crossed_intervals, mean_squares, resampled
from tokensense.stats.pairs import Terms
from tokensense.stats.resampling import (
    LOST_SHARE,
    T_FROM,
    Draws,
    Estimates,
    Resampling,
    cluster_sums,
    intervals,
    resample,
)
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import contrast
from tokensense.stats.triples import TERMS

FRAMES_NEEDED = 2
FRAMES_DRAWN_FROM = 6
# A verdict outside the first five of twenty refutes row 3 of the claims ledger.
TOP = 5
STATISTICS = {
    "lambda": "log[MS(level) / MS(level x frame)], mean squares averaged over problem texts",
    "mean_of_logs": "the same log by problem text, averaged; frames are not drawn",
}
VERDICT_SERIES = "verdict"


class Series(NamedTuple):
    """Contrasts that lambda is made of.

    Attributes:
        owner: family of each series: `verdict` or a placebo family.
        pairs: (series, frame) indices of pairs.
        frames: sentence and placement of each frame, with several pairs also its number.
        left_out: frames that not every series has.
        crossed: whether frames stand for sentences x word pairs.
    """

    owner: tuple[str, ...]
    pairs: tuple[tuple[int, ...], ...]
    frames: tuple[str, ...]
    left_out: int
    crossed: bool


def series_of(pairs: Sequence[Pair], terms: Terms) -> Series:
    """Put the pairs of each family and wording in order of the frames that all of them have.

    Args:
        pairs: of `pairs_of`.
        terms: of `terms_of`.
    """
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    members = {VERDICT_SERIES: terms.verdict, **terms.placebo}
    for owner, indices in members.items():
        for index in indices:
            pair = pairs[index]
            key = (owner, pair.probe, pair.wording)
            found.setdefault(key, {})[f"{pair.frame}/{pair.placement}"] = index
    every = [set(frames) for frames in found.values()]
    shared = sorted(set.intersection(*every))
    counts = [sum(owner == key[0] for key in found) for owner in members if members[owner]]
    if min(counts, default=0) >= 2 and len(set(counts)) == 1:
        return _crossed(found, shared, left_out=len(set.union(*every)) - len(shared))
    return Series(
        tuple(owner for owner, *_ in found),
        tuple(tuple(frames[name] for name in shared) for frames in found.values()),
        tuple(shared),
        len(set.union(*every)) - len(shared),
        crossed=False,
    )


def _crossed(
    found: Mapping[tuple[str, str, str], Mapping[str, int]], shared: Sequence[str], *, left_out: int
) -> Series:
    """One series a family: its word pairs, in the order of their names, in every shared frame."""
    owners = tuple(dict.fromkeys(owner for owner, *_ in found))
    items = []
    for owner in owners:
        own = [frames for key, frames in sorted(found.items()) if key[0] == owner]
        items.append(tuple(frames[name] for name in shared for frames in own))
    count = len(found) // len(owners)
    names = tuple(f"{name}/{number}" for name in shared for number in range(count))
    return Series(owners, tuple(items), names, left_out, crossed=True)


def read(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> tuple[xr.Dataset, xr.Dataset]:
    """Estimate E1.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        plan: the draws of problems, and the seed of those of frames.
        attrs: for both Datasets.

    Returns:
        The triple, dims (statistic, term, bound), and lambda by family, dims (family, bound), the
        verdict first. Attributes: `rank`, `families`, `p`, `smallest_p`, `first_share`,
        `top_share`, `frames`, `statement`; no `p` where it is not estimable, and `statement` says
        why.
    """
    series = series_of(pairs, terms)
    used = _used(sample, pairs, terms=terms)
    families = tuple(dict.fromkeys(series.owner))
    frames = len(series.frames)
    frames_too = frames >= FRAMES_DRAWN_FROM
    tokens = _tokens(sample, used)
    draws = logs = _nothing(len(families), plan)
    if frames >= FRAMES_NEEDED and used.any():
        products = _products(sample, pairs, series=series, used=used)
        squares = resampled(products, plan=plan, frames_too=frames_too)
        draws = _draws(products, squares, series, families=families, held=tokens > 0)
        logs = _log_draws(products, series, families=families, plan=plan)
    # Below 8 texts there is no interval, whatever its tails would be.
    units = max(min(frames, int((tokens > 0).sum())), FRAMES_NEEDED)
    lambdas = crossed_intervals(draws, units=units) if frames_too else intervals(draws)
    ranking = _ranking(draws)
    every = {
        **attrs,
        **ranking,
        "statement": _said(ranking, series, used=used),
        "frames": series.frames,
        "frames_left_out": series.left_out,
        "frames_drawn": frames_too,
        "n_rollouts": int(used.sum()),
        "n_tokens": int(tokens.sum()),
    }
    return _laid_out(lambdas, intervals(logs), families=families, attrs=every)


def _laid_out(
    lambdas: Estimates, logs: Estimates, *, families: Sequence[str], attrs: Mapping[str, object]
) -> tuple[xr.Dataset, xr.Dataset]:
    """The triple of both statistics, and lambda of each family."""
    finite = {**vars(lambdas), "estimate": _finite(lambdas.estimate)}
    both = Estimates(**{n: np.stack([v[:3], vars(logs)[n][:3]]) for n, v in finite.items()})
    own = Estimates(**{n: np.concatenate([v[:1], v[3:]]) for n, v in finite.items()})
    triple = dataset(both, {"statistic": tuple(STATISTICS), "term": TERMS}, attrs=attrs)
    family = dataset(own, {"family": families}, attrs=attrs)
    return (
        triple.assign_coords(
            unit=("statistic", ["1"] * len(STATISTICS)),
            meaning=("statistic", list(STATISTICS.values())),
        ),
        family.assign_coords(unit=("family", ["1"] * len(families))),
    )


def _used(sample: Sample, pairs: Sequence[Pair], *, terms: Terms) -> Bool[np.ndarray, " rollout"]:
    """Rollouts that are comparable under every pair of the triple."""
    chosen = [*terms.verdict, *(i for members in terms.placebo.values() for i in members)]
    return np.asarray(np.logical_and.reduce([sample.usable(pairs[i]) for i in chosen]))


def _tokens(sample: Sample, used: Bool[np.ndarray, " rollout"]) -> Float[np.ndarray, " cluster"]:
    """Tokens of each problem text that take part."""
    return np.asarray(
        np.bincount(sample.cluster[used], sample.length[used], sample.clusters), dtype=np.float64
    )


def _products(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    series: Series,
    used: Bool[np.ndarray, " rollout"],
) -> Float[np.ndarray, " cluster series frame frame"]:
    """Mean over the tokens of each problem text of d in one frame times d in another."""
    tokens = broadcast(used, sample.length)
    count = len(series.frames)
    found = np.zeros((sample.clusters, len(series.pairs), count, count))
    for place, members in enumerate(series.pairs):
        table = np.stack(
            [
                contrast(sample.shift(pairs[i].positive), sample.shift(pairs[i].negative))[tokens]
                for i in members
            ]
        )
        for one in range(count):
            rows = segment_sum(table[one : one + 1] * table[one:], sample.length[used])
            sums = cluster_sums(rows.T, sample.cluster[used], clusters=sample.clusters)
            found[:, place, one, one:] = found[:, place, one:, one] = sums
    filled = np.maximum(_tokens(sample, used), 1.0)
    return np.asarray(found / filled[:, None, None, None])


def _log_ratio(squares: MeanSquares) -> Float[np.ndarray, " draw series"]:
    """Lambda of each series; infinite where one side is nothing, NaN where both are."""
    level, interaction = np.maximum(squares.level, 0.0), squares.interaction
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(level) - np.log(interaction))


def _by_family(
    values: Float[np.ndarray, " draw series"], series: Series, families: Sequence[str]
) -> Float[np.ndarray, " draw family"]:
    """Mean over the wordings of each family."""
    owner = np.array(series.owner)
    return np.stack([values[:, owner == name].mean(axis=1) for name in families], axis=1)


def _outputs(lambdas: Float[np.ndarray, " draw family"]) -> Float[np.ndarray, " draw output"]:
    """Verdict, mean of the placebo families, difference, each placebo family."""
    verdict, placebo = lambdas[:, :1], lambdas[:, 1:]
    mean = np.full_like(verdict, np.nan)
    if placebo.shape[1]:
        mean = placebo.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.concatenate([verdict, mean, verdict - mean, placebo], axis=1)


def _draws(
    products: Float[np.ndarray, " cluster series frame frame"],
    squares: MeanSquares,
    series: Series,
    *,
    families: Sequence[str],
    held: Bool[np.ndarray, " cluster"],
) -> Draws:
    """Lambda on the sample, on the resamples, and without each problem."""

    def outputs(squares: MeanSquares) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return _outputs(_by_family(_log_ratio(squares), series, families))

    once = np.ones((1, products.shape[-1]))
    total = products.sum(axis=0, keepdims=True)
    estimate = outputs(mean_squares(total, once))[0]
    without = outputs(mean_squares(total - products[held], np.repeat(once, held.sum(), axis=0)))
    clusters = int(held.sum())
    with np.errstate(invalid="ignore"):
        pseudo = clusters * estimate - (clusters - 1) * without
    return Draws(
        estimate, outputs(squares), pseudo, np.full(estimate.size, clusters, dtype=np.int64)
    )


def _log_draws(
    products: Float[np.ndarray, " cluster series frame frame"],
    series: Series,
    *,
    families: Sequence[str],
    plan: Resampling,
) -> Draws:
    """Mean over problem texts of the log by problem text; texts without one in all are left out."""
    once = np.ones((len(products), products.shape[-1]))
    logs = _by_family(_log_ratio(mean_squares(products, once)), series, families)
    known = np.isfinite(logs).all(axis=1)
    sums = np.where(known[:, None], np.nan_to_num(logs, posinf=0.0, neginf=0.0), 0.0)
    sums = np.concatenate([sums, known[:, None]], axis=1)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return _outputs(ratio(totals[:, :-1], totals[:, -1:]))

    present = np.repeat(known[:, None], 2 + len(families), axis=1)
    return resample(sums, statistic, plan=plan, present=present)


def _finite(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """NaN for infinite values: where the frames do not differ at all, lambda has no value."""
    return np.where(np.isfinite(values), values, np.nan)


def _nothing(families: int, plan: Resampling) -> Draws:
    """No value of any output."""
    size = 2 + families
    unknown = np.full((plan.resamples, size), np.nan)
    return Draws(unknown[0], unknown, unknown[:0], np.zeros(size, dtype=np.int64))


def _ranking(draws: Draws) -> dict[str, object]:
    """Rank of the verdict on the sample, and how often it is first in the resamples."""
    verdict, placebo = draws.estimate[0], draws.estimate[3:]
    count = placebo.size
    found: dict[str, object] = {"families": count, "smallest_p": 1.0 / (count + 1)}
    if not count or np.isnan(draws.estimate[[0, *range(3, 3 + count)]]).any():
        return found
    rank = 1 + int((placebo >= verdict).sum())
    found |= {"rank": rank, "p": rank / (count + 1)}
    values = draws.values[:, [0, *range(3, 3 + count)]]
    known = ~np.isnan(values).any(axis=1)
    if known.mean() < 1 - LOST_SHARE or draws.clusters[0] < T_FROM:
        return found
    places = 1 + (values[known, 1:] >= values[known, :1]).sum(axis=1)
    within = float((places <= min(TOP, count)).mean())
    return found | {"first_share": float((places == 1).mean()), "top_share": within}


def _said(
    ranking: Mapping[str, object], series: Series, *, used: Bool[np.ndarray, " rollout"]
) -> str:
    """The result, or why there is none, in words."""
    frames = len(series.frames)
    if not ranking["families"]:
        return "not estimable: no placebo family; run the probe `placebo`"
    if not used.any():
        return "not estimable: no rollout may be compared under all pairs of the triple"
    if frames < FRAMES_NEEDED:
        return f"not estimable: {FRAMES_NEEDED} frames are needed that all families have; {frames}"
    if "rank" not in ranking:
        return "not estimable: a family has no contrast in any frame"
    parts = [
        f"verdict ranks {ranking['rank']} of {int(str(ranking['families'])) + 1}, "
        f"p {ranking['p']:.3f} (smallest reachable {ranking['smallest_p']:.3f})"
    ]
    if "first_share" in ranking:
        parts.append(f"first in {ranking['first_share']:.1%} of resamples")
    else:
        parts.append(f"resamples not ranked: too few problem texts ({T_FROM} needed), or unstable")
    if not series.crossed:
        parts.append("one word pair in every sentence: consistency over sentences, not of meaning")
    if frames < FRAMES_DRAWN_FROM:
        parts.append(f"{frames} frames: for these wordings, problems alone are drawn")
    else:
        parts.append(f"problems and {frames} frames drawn")
    return ", ".join(parts)
