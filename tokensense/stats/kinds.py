"""How far each kind of token moves: as it is, and against equally surprising tokens of its trace.

Reads  Sample, its pairs, the triple's terms.
Gives  (scale, measure, kind, term): mean in nats, log ratio to the mean of all other tokens, log
       ratio to matched tokens; and the balance of the matching.
Sign   log ratio above 0: tokens of the kind move more than the others.

Two estimands, both shown (`statistics.md` 3.7). `log_ratio` is the total: is the description "this
kind moves more" right? `log_ratio_matched` is what remains against tokens of other kinds in the
same trace that were as surprising: does the counterfactual pass add anything to surprisal?

Matching  each token of the kind is set against all tokens of other kinds in its own trace whose
          log(surprisal + .001) lies within a caliper of .1 standard deviation; they share its
          weight of one. (All within the radius rather than the nearest: log-probabilities tie
          often, and the result must not hang on the order of tokens.) A token without such a
          partner is left out: `matched_share` says how many stay, the balance how alike the two
          sides are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from tokensense.segments import broadcast, segment_index
from tokensense.stats.catalogue import ratio
from tokensense.stats.pairs import Terms
from tokensense.stats.resampling import Resampling, intervals, resample
from tokensense.stats.results import dataset, plain
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import absolute_shift, contrast, sensitivity
from tokensense.stats.triples import TERMS, Group, averages

CALIPER = 0.1
# Below this surprisal tokens count as equally certain.
SURPRISAL_OFFSET = 1e-3
MEASURES = ("absolute_shift", "sensitivity", "absolute_contrast")
SIDES = ("own", "matched", "partner")
SCALES = ("mean", "log_ratio", "log_ratio_matched")
COVARIATES = ("log_surprisal", "onehot_distance", "relative_position")


class Matching(NamedTuple):
    """Tokens of one kind and the tokens they are set against.

    Attributes:
        matched: tokens of the kind that have a partner.
        weight: of every token as a partner; adds up to the number of matched tokens.
    """

    matched: Bool[np.ndarray, " token"]
    weight: Float[np.ndarray, " token"]


def log_surprisal(surprisal: Float[np.ndarray, " token"]) -> Float[np.ndarray, " token"]:
    """The scale on which tokens are matched: log(surprisal + .001).

    Args:
        surprisal: nats; negative rounding counts as 0.
    """
    return np.asarray(np.log(np.maximum(surprisal, 0.0) + SURPRISAL_OFFSET))


def match(
    position: Float[np.ndarray, " token"],
    inside: Bool[np.ndarray, " token"],
    length: Int64[np.ndarray, " rollout"],
    *,
    caliper: float,
) -> Matching:
    """Set each token of a kind against all others of its trace within a caliper.

    Args:
        position: where each token stands on the scale of matching.
        inside: tokens of the kind.
        length: tokens per rollout.
        caliper: largest distance on the scale, borders included.
    """
    span = float(np.ptp(position)) if position.size else 0.0
    # One line for all traces, far enough apart that no window reaches into the next.
    line = (position - position.min(initial=np.inf)) if position.size else position
    line = line + segment_index(length) * (span + 3 * caliper + 1.0)
    others = np.flatnonzero(~inside)
    others = others[np.argsort(line[others], kind="stable")]
    place = line[others]
    members = np.flatnonzero(inside)
    low = np.searchsorted(place, line[members] - caliper, side="left")
    high = np.searchsorted(place, line[members] + caliper, side="right")
    partners = high - low
    found = partners > 0
    matched = np.zeros(position.size, dtype=bool)
    matched[members[found]] = True
    # Each member spreads weight 1 over its window: a step up at its start, a step down at its end.
    steps = np.zeros(others.size + 1)
    np.add.at(steps, low[found], 1.0 / partners[found])
    np.add.at(steps, high[found], -1.0 / partners[found])
    weight = np.zeros(position.size)
    height = np.cumsum(steps)[:-1]
    # A true weight is at least 1 / tokens of the trace; less is what rounding left of a window.
    weight[others] = np.where(height > 1e-9, height, 0.0)
    return Matching(matched, weight)


def shift_by_kind(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> tuple[xr.Dataset, xr.Dataset]:
    """Estimate the shift of every kind, raw and matched, with the balance of the matching.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        plan: the draws.
        attrs: for both Datasets.

    Returns:
        The triple, dims (scale, measure, kind, term, bound) with `n_tokens` and `n_rollouts`
        (kind); and the balance, dims (kind, covariate, stage): standardized mean differences of a
        kind from all others before, and from its partners after, with `matched_share` (kind).
    """
    names = np.unique(sample.kind)
    place = log_surprisal(sample.surprisal)
    used = broadcast(sample.comparable.any(axis=0), sample.length)
    caliper = CALIPER * float(place[used].std()) if used.any() else 0.0
    place = np.where(used, place, 0.0)
    matchings = [
        match(place, (sample.kind == name) & used, sample.length, caliper=caliper) for name in names
    ]
    kept = [*terms.verdict, *(i for members in terms.placebo.values() for i in members)]
    sums = _sums(sample, [pairs[i] for i in kept], names=names, matchings=matchings)
    groups = _renumbered(terms)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        values = averages(_values(totals), groups)
        return np.concatenate([values, values[..., :1] - values[..., 1:]], axis=-1)

    present = _present(sums, groups)
    found = intervals(resample(sums, statistic, plan=plan, present=present))
    coords = {"scale": SCALES, "measure": MEASURES, "kind": names.tolist(), "term": TERMS}
    result = dataset(found, coords, attrs={**attrs, "caliper": caliper})
    result = result.assign_coords(unit=("scale", ["nats", "1", "1"]))
    return (
        result.assign(_counts(sample, names)),
        _balance(sample, names=names, matchings=matchings, used=used, attrs=attrs),
    )


def _sums(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    names: Shaped[np.ndarray, " kind"],
    matchings: Sequence[Matching],
) -> Float64[np.ndarray, " cluster pair kind side column"]:
    """Tokens and sizes of own, matched and partner tokens of each problem text, kind and pair."""
    cluster = broadcast(sample.cluster, sample.length)
    shape = (sample.clusters, len(pairs), len(names), len(SIDES), 1 + len(MEASURES))
    found = np.zeros(shape)
    for place, pair in enumerate(pairs):
        columns = _columns(sample, pair)
        for kind, (name, matching) in enumerate(zip(names, matchings, strict=True)):
            sides = (sample.kind == name, matching.matched, matching.weight)
            for side, weight in enumerate(sides):
                at = np.flatnonzero(weight)
                rows, heavy = cluster[at], weight[at]
                for number, column in enumerate(columns):
                    total = np.bincount(rows, heavy * column[at], sample.clusters)
                    found[:, place, kind, side, number] = total
    return found


def _columns(sample: Sample, pair: Pair) -> list[Float[np.ndarray, " token"]]:
    """Tokens and sizes, 0 where the pair cannot be used."""
    positive, negative = sample.shift(pair.positive), sample.shift(pair.negative)
    tokens = broadcast(sample.usable(pair), sample.length)
    sizes = (
        absolute_shift(positive, negative),
        sensitivity(positive, negative),
        np.abs(contrast(positive, negative)),
    )
    return [tokens.astype(np.float64), *(np.where(tokens, size, 0.0) for size in sizes)]


def _values(
    totals: Float[np.ndarray, " row pair kind side column"],
) -> Float[np.ndarray, " row scale measure kind pair"]:
    """Mean, log ratio and matched log ratio of every kind and pair from totals."""
    own, matched, partner = (totals[..., side, :] for side in range(len(SIDES)))
    rest = own.sum(axis=2, keepdims=True) - own
    mean = ratio(own[..., 1:], own[..., :1])
    others = ratio(rest[..., 1:], rest[..., :1])
    scales = [mean, _log_ratio(mean, others), _log_ratio(matched[..., 1:], partner[..., 1:])]
    return np.stack(scales, axis=1).swapaxes(2, 4)


def _log_ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Log of a ratio; NaN where either side is not positive."""
    known = (above > 0) & (below > 0)
    return np.where(
        known, np.log(np.where(known, above, 1.0) / np.where(known, below, 1.0)), np.nan
    )


def _renumbered(terms: Terms) -> tuple[Group, Group]:
    """Verdict and placebo as groups of the pairs kept, in the order they were kept."""
    start = len(terms.verdict)
    placebo = []
    for members in terms.placebo.values():
        placebo.append(tuple(range(start, start + len(members))))
        start += len(members)
    return (tuple(range(len(terms.verdict))),), tuple(placebo)


def _present(
    sums: Float[np.ndarray, " cluster pair kind side column"], groups: Sequence[Group]
) -> Bool[np.ndarray, " cluster scale measure kind term"]:
    """Whether a problem text holds tokens of a kind, matched ones for the matched scale."""
    found: list[np.ndarray] = []
    for group in groups:
        members = [pair for inner in group for pair in inner]
        tokens = sums[..., 0][:, members].sum(axis=1)
        own, matched = tokens[..., 0] > 0, tokens[..., 1] > 0
        found.append(np.stack([own, own, matched], axis=1))
    terms: np.ndarray = np.stack([*found, found[0] & found[1]], axis=-1)
    return np.repeat(terms[:, :, None], len(MEASURES), axis=2)


def _counts(sample: Sample, names: Shaped[np.ndarray, " kind"]) -> dict[str, xr.Variable]:
    """Tokens of each kind, and rollouts that have any."""
    owner = segment_index(sample.length)
    at = [np.flatnonzero(sample.kind == name) for name in names]
    rollouts = [len(np.unique(owner[tokens])) for tokens in at]
    return {
        "n_tokens": xr.Variable(
            ("kind",),
            [len(tokens) for tokens in at],
            {"units": "1", "description": "tokens of the kind, comparable or not"},
        ),
        "n_rollouts": xr.Variable(
            ("kind",), rollouts, {"units": "1", "description": "rollouts with such a token"}
        ),
    }


def _balance(
    sample: Sample,
    *,
    names: Shaped[np.ndarray, " kind"],
    matchings: Sequence[Matching],
    used: Bool[np.ndarray, " token"],
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Standardized mean differences of each kind before and after matching."""
    start = np.cumsum(sample.length) - sample.length
    within = np.arange(sample.kind.size) - broadcast(start, sample.length)
    relative = (within + 0.5) / broadcast(sample.length, sample.length)
    covariates = np.stack([log_surprisal(sample.surprisal), sample.distance, relative])[:, used]
    spread = covariates.std(axis=1)
    table = np.full((len(names), len(COVARIATES), 2), np.nan)
    share = np.full(len(names), np.nan)
    for kind, (name, matching) in enumerate(zip(names, matchings, strict=True)):
        own = (sample.kind == name)[used].astype(np.float64)
        pairs = (
            (own, 1.0 - own),
            (matching.matched[used].astype(np.float64), matching.weight[used]),
        )
        for stage, (one, other) in enumerate(pairs):
            difference = _mean(covariates, one) - _mean(covariates, other)
            table[kind, :, stage] = ratio(difference, spread)
        share[kind] = np.mean(matching.matched[used][own > 0]) if own.any() else np.nan
    return xr.Dataset(
        {
            "difference": (
                ("kind", "covariate", "stage"),
                table,
                {
                    "units": "standard deviations of all tokens",
                    "description": "mean of the kind minus mean of the tokens it is set against",
                },
            ),
            "matched_share": (
                ("kind",),
                share,
                {"units": "1", "description": "tokens of the kind that have a partner"},
            ),
        },
        coords={
            "kind": names.tolist(),
            "covariate": list(COVARIATES),
            "stage": ["before", "after"],
        },
        attrs=plain(attrs),
    )


def _mean(
    values: Float[np.ndarray, " covariate token"], weight: Float[np.ndarray, " token"]
) -> Float[np.ndarray, " covariate"]:
    """Weighted mean; NaN for no weight."""
    return ratio(values @ weight, np.full(len(values), weight.sum()))
