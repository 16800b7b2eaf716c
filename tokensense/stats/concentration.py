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
from tokensense.segments import broadcast, segment_max, segment_ranks, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import Estimates, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Sample

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
    sizes = {name: np.abs(np.asarray(values, dtype=np.float64)) for name, values in scores.items()}
    known = {name: _known(size, sample.length) for name, size in sizes.items()}
    known = {
        name: finite & (segment_sum(np.where(np.isfinite(sizes[name]), sizes[name], 0.0),
                                    sample.length) > 0)
        for name, finite in known.items()
    }
    rows = {name: _concentrated(sizes[name], sample.length, known[name]) for name in names}
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
        rows[label] = _agreed(ranks[first], ranks[second], tops[first], tops[second], length)
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
    # Ranks from the top: 1 the largest, ties averaged; a run of equal values ends half its
    # length below its mean rank.
    rank = segment_ranks(-values, length)
    ends, runs = _runs(values, length)
    before = rank - (runs + 1) / 2
    del ends
    return np.asarray(np.clip((size - before) / runs, 0.0, 1.0))
