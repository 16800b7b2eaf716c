"""On how few tokens a score lies, on which kinds, and whether two scores pick the same tokens.

Reads  scores, one number a token: sizes of shifts, weights of rules; or one score under several
       frames, replicas, models or checkpoints, which are rows like any other.
Gives  concentration (statistic, score) with the mass by kind; agreement (statistic, pair).
Sign   concentration looks at sizes, |score|; agreement keeps the sign: high means picked.

Everything is computed within each response and averaged over responses, which count once each, so
that long ones do not rule and differences between responses play no part. A response in which a
score is not finite on some token, or has no value (no mass; no variation), is left out of that
score, and counted. Problem texts are resampled.

gini            0 where all tokens weigh the same, towards 1 where one token has it all.
effective       effective tokens (sum w)^2 / sum w^2, as a share of the response's tokens.
top_tenth_mass  share of the mass on the tenth of the tokens with the largest sizes, at least one.
rank_agreement  Spearman's correlation.
top_overlap     share of the top tenth of one score that is in the top tenth of the other; tied
                tokens share the places that are left, which is what a random tie break expects.
top_overlap_by_chance   the same of a score that knows nothing: the share of tokens in the top.
lift (kind)     log of the share of the mass on a kind over its share of the tokens, each summed
                over responses; 0: a kind has its share.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Num, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_ranks, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.pairs import Terms, mean_shifts
from tokensense.stats.resampling import Estimates, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import contrast, sensitivity

TOP_SHARE = 0.1
CONCENTRATIONS = {
    "gini": "inequality of sizes within a response, 0 for equal ones",
    "effective": "effective tokens as a share of the response's, 1 for equal sizes",
    "top_tenth_mass": "share of the mass on the top tenth of the tokens",
}
AGREEMENTS = {
    "rank_agreement": "Spearman's correlation within responses",
    "top_overlap": "share of one top tenth that is in the other",
    "top_overlap_by_chance": "the same of a score that knows nothing",
}


def concentration(
    scores: Mapping[str, Num[np.ndarray, " token"]],
    sample: Sample,
    *,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate how concentrated each score is.

    Args:
        scores: by name, in the order of the sample.
        sample: lengths, kinds and problem texts.
        plan: the draws.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, score, bound), `n_rollouts` (score); and `lift` (score, kind), with
        `lift_interval` (score, kind, bound) and `lift_method`.

    Raises:
        SchemaError: a score has another length.
    """
    _require_whole(scores, sample)
    names = tuple(scores)
    sizes, known, rows = {}, {}, {}
    for name, values in scores.items():
        finite = _known(values, sample.length)
        held = np.where(broadcast(finite, sample.length), values, 0.0)
        sizes[name] = np.abs(held.astype(np.float64))
        known[name] = segment_sum(sizes[name], sample.length) > 0
        rows[name] = _concentrated(sizes[name], sample.length)
    found = _means(rows, known, sample, plan=plan)
    lifts, kinds = _lifts(sizes, known, sample, plan=plan)
    result = dataset(found, {"statistic": tuple(CONCENTRATIONS), "score": names}, attrs=attrs)
    limits = np.stack([lifts.low, lifts.high], axis=-1)
    unit = {"units": "1", "description": "log of share of mass over share of tokens"}
    return result.assign(
        n_rollouts=("score", [int(known[name].sum()) for name in names]),
        lift=(("score", "kind"), lifts.estimate, unit),
        lift_interval=(("score", "kind", "bound"), limits),
        lift_method=(("score", "kind"), lifts.method, result["method"].attrs),
    ).assign_coords(
        kind=kinds,
        unit=("statistic", ["1"] * len(CONCENTRATIONS)),
        meaning=("statistic", list(CONCENTRATIONS.values())),
    )


def agreement(
    scores: Mapping[str, Num[np.ndarray, " token"]],
    sample: Sample,
    *,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate how far each two scores pick the same tokens.

    Args:
        scores: by name, in the order of the sample, high = picked; at least two.
        sample: lengths and problem texts.
        plan: the draws.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, pair, bound), coordinates `first` and `second` (pair), `n_rollouts` (pair).

    Raises:
        SchemaError: a score has another length, or there are fewer than two.
    """
    _require_whole(scores, sample)
    if len(scores) < 2:
        raise SchemaError(
            f"agreement needs two scores or more; it has {list(scores)}. Add one to compare with."
        )
    length = sample.length
    known = {name: _known(np.asarray(values), length) for name, values in scores.items()}
    ranks, tops = {}, {}
    for name, values in scores.items():
        held = np.where(broadcast(known[name], length), values, 0.0).astype(np.float64)
        ranks[name] = _centered_ranks(held, length)
        tops[name] = top_membership(held, length)
        known[name] &= segment_sum(ranks[name] ** 2, length) > 0
    rows, both = {}, {}
    for first, second in combinations(scores, 2):
        label = f"{first} ~ {second}"
        both[label] = known[first] & known[second]
        rows[label] = _agreed((ranks[first], ranks[second]), (tops[first], tops[second]), length)
    found = _means(rows, both, sample, plan=plan)
    result = dataset(found, {"statistic": tuple(AGREEMENTS), "pair": tuple(rows)}, attrs=attrs)
    pairs = list(combinations(scores, 2))
    return result.assign(
        n_rollouts=("pair", [int(kept.sum()) for kept in both.values()])
    ).assign_coords(
        first=("pair", [first for first, _ in pairs]),
        second=("pair", [second for _, second in pairs]),
        unit=("statistic", ["1"] * len(AGREEMENTS)),
        meaning=("statistic", list(AGREEMENTS.values())),
    )


def top_membership(
    values: Float[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> Float[np.ndarray, " token"]:
    """How far each token is in the top tenth of its response; tied ones share what is left.

    Args:
        values: finite.
        length: tokens per response.

    Returns:
        In [0, 1]; sums to the size of the top, a tenth rounded up.
    """
    size = broadcast(_top(length), length).astype(np.float64)
    rank = np.asarray(segment_ranks(-values, length))  # 1 the largest, ties averaged
    # Averaged ranks are halves, so that twice them numbers the runs of equal values.
    run = broadcast(np.cumsum(2 * length) - 2 * length, length) + np.round(2 * rank).astype(
        np.int64
    )
    _, place, count = np.unique(run, return_inverse=True, return_counts=True)
    tied = count[place].astype(np.float64)
    before = rank - (tied + 1) / 2
    return np.asarray(np.clip((size - before) / tied, 0.0, 1.0))


def _top(length: Int64[np.ndarray, " rollout"]) -> Int64[np.ndarray, " rollout"]:
    """Tokens in the top tenth."""
    return np.asarray(np.ceil(TOP_SHARE * length - 1e-9), dtype=np.int64)


def _require_whole(scores: Mapping[str, Num[np.ndarray, "..."]], sample: Sample) -> None:
    """Check that every score has one number a token."""
    for name, values in scores.items():
        if values.shape != sample.kind.shape:
            raise SchemaError(
                f"a score needs {sample.kind.size} numbers, one a token; {name!r} has shape "
                f"{values.shape}. Give one number a token, in the order of the sample."
            )


def _known(
    values: Num[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> Bool[np.ndarray, " rollout"]:
    """Responses in which a score is finite on every token."""
    lacking = (~np.isfinite(values.astype(np.float64))).astype(np.float64)
    return np.asarray(segment_sum(lacking, length) == 0)


def _concentrated(
    size: Float[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> Float[np.ndarray, " rollout statistic"]:
    """Gini, effective share and mass of the top of each response; NaN where there is no mass."""
    mass = segment_sum(size, length)
    rank = np.asarray(segment_ranks(size, length))
    weight = 2 * rank - broadcast(length, length) - 1
    count = length.astype(np.float64)
    top = segment_sum(top_membership(size, length) * size, length)
    return np.stack(
        [
            ratio(segment_sum(weight * size, length), count * mass),
            ratio(mass**2, count * segment_sum(size**2, length)),
            ratio(top, mass),
        ],
        axis=1,
    )


def _centered_ranks(
    values: Float[np.ndarray, " token"], length: Int64[np.ndarray, " rollout"]
) -> Float[np.ndarray, " token"]:
    """Ranks within responses minus their mean."""
    return np.asarray(segment_ranks(values, length) - (broadcast(length, length) + 1) / 2)


def _agreed(
    ranks: Sequence[Float[np.ndarray, " token"]],
    tops: Sequence[Float[np.ndarray, " token"]],
    length: Int64[np.ndarray, " rollout"],
) -> Float[np.ndarray, " rollout statistic"]:
    """Rank correlation, overlap of the tops and its chance in each response."""
    one, other = (segment_sum(rank**2, length) for rank in ranks)
    size = _top(length).astype(np.float64)
    return np.stack(
        [
            ratio(segment_sum(ranks[0] * ranks[1], length), np.sqrt(one * other)),
            segment_sum(tops[0] * tops[1], length) / size,
            size / length,
        ],
        axis=1,
    )


def _means(
    rows: Mapping[str, Float[np.ndarray, " rollout statistic"]],
    known: Mapping[str, Bool[np.ndarray, " rollout"]],
    sample: Sample,
    *,
    plan: Resampling,
) -> Estimates:
    """Mean over responses that have a value, of every statistic and row."""
    kept = np.stack(list(known.values()), axis=1)  # (rollout, row)
    values = np.stack(list(rows.values()), axis=2)  # (rollout, statistic, row)
    values = np.where(kept[:, None], values, 0.0)
    whole = np.concatenate([values, kept[:, None].astype(np.float64)], axis=1)
    sums = cluster_sums(whole, sample.cluster, clusters=sample.clusters)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return ratio(totals[:, :-1], np.broadcast_to(totals[:, -1:], totals[:, :-1].shape))

    present = np.repeat(sums[:, -1:] > 0, sums.shape[1] - 1, axis=1)
    return intervals(resample(sums, statistic, plan=plan, present=present))


def _lifts(
    sizes: Mapping[str, Float[np.ndarray, " token"]],
    known: Mapping[str, Bool[np.ndarray, " rollout"]],
    sample: Sample,
    *,
    plan: Resampling,
) -> tuple[Estimates, list[str]]:
    """Log of the share of mass over the share of tokens, of every score and kind."""
    kinds, kind = np.unique(sample.kind, return_inverse=True)
    cluster = broadcast(sample.cluster, sample.length)
    sums = np.zeros((sample.clusters, len(sizes), len(kinds), 2))
    cell = cluster * len(kinds) + kind
    for place, (name, size) in enumerate(sizes.items()):
        kept = broadcast(known[name], sample.length)
        for column, weight in enumerate((size[kept], np.ones(int(kept.sum())))):
            flat = np.bincount(cell[kept], weight, sample.clusters * len(kinds))
            sums[:, place, :, column] = flat.reshape(sample.clusters, len(kinds))

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        shares = ratio(totals, np.broadcast_to(totals.sum(axis=2, keepdims=True), totals.shape))
        mass, tokens = shares[..., 0], shares[..., 1]
        held = (mass > 0) & (tokens > 0)
        lift = np.where(held, mass, 1.0) / np.where(held, tokens, 1.0)
        return np.where(held, np.log(lift), np.nan)

    present = sums[..., 1] > 0
    return intervals(resample(sums, statistic, plan=plan, present=present)), kinds.tolist()


def shift_scores(
    sample: Sample, pairs: Sequence[Pair], *, terms: Terms
) -> tuple[dict[str, Float[np.ndarray, " token"]], dict[str, Float[np.ndarray, " token"]]]:
    """Scores of a store to be compared, NaN for responses that the triple leaves out.

    Args:
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.

    Returns:
        Sizes of the verdict's mean shifts, those of the first placebo family, and surprisal; and
        the verdict's contrast in each pair by itself (frames and wordings), by its name. Nats.
    """
    usable = broadcast(sample.usable(pairs[terms.verdict[0]]), sample.length)
    verdict = mean_shifts(sample, [pairs[i] for i in terms.verdict])
    found = {
        "surprisal": sample.surprisal,
        "sensitivity": sensitivity(*verdict),
        "absolute_contrast": np.abs(contrast(*verdict)),
    }
    for members in list(terms.placebo.values())[:1]:
        sides = mean_shifts(sample, [pairs[i] for i in members])
        found["placebo_sensitivity"] = sensitivity(*sides)
        found["placebo_absolute_contrast"] = np.abs(contrast(*sides))
    each = {
        pairs[i].name: contrast(sample.shift(pairs[i].positive), sample.shift(pairs[i].negative))
        for i in terms.verdict
    }
    return (
        {name: np.where(usable, values, np.nan) for name, values in found.items()},
        {name: np.where(usable, values, np.nan) for name, values in each.items()},
    )
