"""What the shifts of a store say about what its verdicts do: one word, from the arrays alone.

Reads  the Dataset of `Study.tokens()`: log-probabilities, rewards, token ids; no names, no texts.
Gives  character: the word with a sentence, and the quantities behind it (quantity, bound).
Sign   log ratio above 0: verdicts do more than irrelevant words do; AUROC above .5: responses that
       "right" pulls up against "wrong" are right more often.

The words, the thresholds and the decision are those of `naming`.

Quantities, with z+ and z- of a token averaged over the wordings first (of the verdict, or of a
placebo family):
context_gain    1 - mean surprisal / entropy of the store's own token frequencies.
push_ratio      log of the mean joint push, verdict against placebo families. The joint push of a
                token is how far both words move it the same way, min(|z+|, |z-|) = |m| - |d|; it is
                0 where they oppose each other.
contrast_ratio  the same of |d - b m|, b the least-squares slope of d on m of those wordings: of two
                words for the same, the better learnt one pushes further, and that is no contrast.
auroc           within-problem AUROC of S for right, S the sum over a response's tokens of d;
                balanced over generators, as in `endpoints`.
Ratios are against the mean over placebo families. They hold for these wordings: the problems are
resampled, the words are not. Entropy and slopes are held fixed in the resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import xarray as xr
from jaxtyping import Float, Int64, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.endpoints import informative
from tokensense.stats.naming import QUANTITIES, THRESHOLDS, Reading, decide
from tokensense.stats.pairs import Terms, mean_shifts, pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.resampling import (
    Draws,
    Estimates,
    Method,
    Resampling,
    cluster_sums,
    intervals,
    resample,
)
from tokensense.stats.results import dataset, reason
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.shifts import common, contrast


def character(tokens: xr.Dataset, *, seed: int = 0, resamples: int = 10_000) -> xr.Dataset:
    """Name what the verdicts of a store do.

    Args:
        tokens: dims (condition, token), as `Study.tokens()` gives it; base among the conditions.
        seed: of the resamples.
        resamples: draws of problems.

    Returns:
        Dims (quantity, bound), with `threshold` (quantity); attributes `word` (one of WORDS, or
        `not_estimable`), `statement`, `thresholds` (JSON) and their digest, numbers of problems,
        responses and tokens.

    Raises:
        SchemaError: `tokens` lacks a part, or conditions cannot be paired.
        StatisticsError: there is no verdict pair, or a comparable token was not scored.
    """
    read = read_sample(tokens)
    pairs = pairs_of(read)
    terms = terms_of(read, pairs)
    sample = with_shared_rollouts(read, pairs, terms)
    plan = Resampling(sample.clusters, resamples, seed)
    attrs = {**read.attrs, "seed": seed, "resamples": resamples, "level": 0.95}
    told = informative(sample, pairs, terms=terms, plan=plan, attrs=attrs)
    endpoint = None if told is None else told[0]
    return characterize(
        tokens, sample, pairs, terms=terms, endpoint=endpoint, plan=plan, attrs=attrs
    )


def characterize(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    endpoint: xr.Dataset | None,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Name what the verdicts do, see `character`.

    Args:
        tokens: that the sample was read from.
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        endpoint: the triple of `informative`, None where it has none.
        plan: the draws.
        attrs: of the Dataset.

    Raises:
        SchemaError: `tokens` has no `token_id`.
    """
    used = sample.usable(pairs[terms.verdict[0]])
    ratios = _ratios(
        sample, pairs, terms=terms, used=used, ids=_token_ids(tokens, sample), plan=plan
    )
    telling = _telling(endpoint, plan)
    found = Estimates(
        **{name: np.concatenate([part, vars(telling)[name]]) for name, part in vars(ratios).items()}
    )
    said = decide({name: _reading(found, place) for place, name in enumerate(QUANTITIES)})
    every = {
        **attrs,
        **said._asdict(),
        "thresholds": asdict(THRESHOLDS),
        "thresholds_digest": THRESHOLDS.digest,
        "n_rollouts": int(used.sum()),
        "n_tokens": int(sample.length[used].sum()),
    }
    result = dataset(found, {"quantity": tuple(QUANTITIES)}, attrs=every)
    return result.assign_coords(
        unit=("quantity", ["1"] * len(QUANTITIES)),
        meaning=("quantity", list(QUANTITIES.values())),
        threshold=("quantity", [getattr(THRESHOLDS, name) for name in QUANTITIES]),
    )


def _token_ids(tokens: xr.Dataset, sample: Sample) -> Int64[np.ndarray, " token"]:
    """Ids of the tokens in the order of the sample."""
    if "token_id" not in tokens.variables:
        raise SchemaError(
            "`tokens` needs `token_id` (token,); it has "
            f"{sorted(map(str, tokens.variables))}. Take them from Study.tokens()."
        )
    return np.asarray(tokens["token_id"].values[sample.order].astype(np.int64))


def _reading(found: Estimates, place: int) -> Reading:
    """One quantity; a value that no resample changes is its own interval."""
    estimate, method = float(found.estimate[place]), int(found.method[place])
    low, high = float(found.low[place]), float(found.high[place])
    if method == Method.NONE_NO_VARIATION:
        low = high = estimate
    return Reading(estimate, low, high, reason(method))


def joint_push(
    positive: Float[np.ndarray, " token"], negative: Float[np.ndarray, " token"]
) -> Float[np.ndarray, " token"]:
    """How far both conditions move a token the same way, nats, never negative.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    together = np.sign(positive) == np.sign(negative)
    return np.where(together, np.minimum(np.abs(positive), np.abs(negative)), 0.0)


def contrast_beside(
    positive: Float[np.ndarray, " token"], negative: Float[np.ndarray, " token"]
) -> Float[np.ndarray, " token"]:
    """|d - b m| with the least-squares slope b of d on m, nats, never negative.

    Args:
        positive: z+, nats.
        negative: z-, nats.
    """
    m, d = common(positive, negative), contrast(positive, negative)
    squares = float(m @ m)
    slope = float(m @ d) / squares if squares > 0 else 0.0
    return np.asarray(np.abs(d - slope * m))


def _ratios(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    used: Shaped[np.ndarray, " rollout"],
    ids: Int64[np.ndarray, " token"],
    plan: Resampling,
) -> Estimates:
    """Gain of the context, ratios of joint push and of contrast."""
    inside = broadcast(used, sample.length)
    _, count = np.unique(ids[inside], return_counts=True)
    share = count / count.sum()
    entropy = float(-(share * np.log(share)).sum())
    columns = [np.ones(int(inside.sum())), sample.surprisal[inside]]
    for members in (terms.verdict, *terms.placebo.values()):
        sides = tuple(side[inside] for side in mean_shifts(sample, (pairs[i] for i in members)))
        columns += [joint_push(*sides), contrast_beside(*sides)]
    rows = np.stack([segment_sum(column, sample.length[used]) for column in columns], axis=1)
    sums = cluster_sums(rows, sample.cluster[used], clusters=sample.clusters)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        surprisal = ratio(totals[:, 1], totals[:, 0])
        gain = 1 - surprisal / entropy if entropy > 0 else np.full_like(surprisal, np.nan)
        sizes = [_log_ratio(totals[:, 2 + part :: 2]) for part in range(2)]
        return np.stack([gain, *sizes], axis=1)

    present = np.repeat(sums[:, :1] > 0, 3, axis=1)
    return intervals(resample(sums, statistic, plan=plan, present=present))


def _log_ratio(sizes: Float[np.ndarray, "row family"]) -> Float[np.ndarray, " row"]:
    """Log of the verdict's size over the mean placebo family's; NaN where one is 0."""
    placebo = sizes[:, 1:].mean(axis=1) if sizes.shape[1] > 1 else np.zeros(len(sizes))
    known = (sizes[:, 0] > 0) & (placebo > 0)
    share = np.where(known, sizes[:, 0], 1.0) / np.where(known, placebo, 1.0)
    return np.where(known, np.log(share), np.nan)


def _telling(endpoint: xr.Dataset | None, plan: Resampling) -> Estimates:
    """AUROC of the summed contrast, as the endpoint has it."""
    if endpoint is None:
        nothing = np.full((plan.resamples, 1), np.nan)
        none = Draws(np.full(1, np.nan), nothing, nothing[:1], np.zeros(1, dtype=np.int64))
        return intervals(none)
    one = endpoint.sel(statistic="auroc_sum_balanced", term=["verdict"])
    low, high = one["interval"].transpose("bound", "term").values
    return Estimates(
        estimate=one["estimate"].values,
        low=low,
        high=high,
        error=one["error"].values,
        method=one["method"].values,
        clusters=one["n_clusters"].values,
        lost=one["lost"].values,
    )
