"""Does the sign of the contrast agree with the outcome, token by token and response by response?

Reads  contrasts of the verdict and placebo pairs, rewards.
Gives  (statistic, term): class-balanced agreement, and its two halves.
Sign   above .5: tokens of right responses are pulled up by "right", those of wrong ones by "wrong".

Agreement    for each outcome the share of tokens (or responses) whose mean contrast over wordings
             has its sign, 0 counting half; then the mean of the two shares, so that a store of 90 %
             right responses does not favor a contrast that is nearly always positive. Responses
             without a decided reward take no part.
Of responses the sign is that of the sum over tokens of the mean contrast.
Placebo      of each family; mean over families. The two words of a placebo have no right order, so
             that its agreement says how far from .5 any word pair comes.

Not the within-problem AUROC of `endpoints`: problems are pooled, and a contrast that knows hard
problems agrees with the outcome too. Source: F2 of arXiv:2607.27888, whose exact definition is not
public; claims ledger, row 5.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.pairs import Terms, mean_shifts
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import contrast
from tokensense.stats.triples import TERMS

UNITS = ("tokens", "responses")
STATISTICS = {
    "agreement_of_tokens": "mean over outcomes of the share of tokens whose contrast has its sign",
    "right_tokens_positive": "share of tokens of right responses with a contrast above 0",
    "wrong_tokens_negative": "share of tokens of wrong responses with a contrast below 0",
    "agreement_of_responses": "mean over outcomes of the share of responses whose sum has its sign",
    "right_responses_positive": "share of right responses with a sum above 0",
    "wrong_responses_negative": "share of wrong responses with a sum below 0",
}


def polarity(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate the agreement of contrasts with outcomes.

    Args:
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        plan: the draws.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, term, bound); an outcome that no response has leaves its share, and the
        agreement, without a value.
    """
    used = sample.usable(pairs[terms.verdict[0]]) & np.isin(sample.reward, (0.0, 1.0))
    groups = (terms.verdict, *terms.placebo.values())
    sums = np.stack([_sums(sample, [pairs[i] for i in g], used=used) for g in groups], axis=1)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        share = ratio(totals[..., 0], totals[..., 1])  # (row, series, unit, outcome)
        every = np.concatenate([share.mean(axis=-1, keepdims=True), share], axis=-1)
        flat = every.reshape(*every.shape[:2], -1)
        verdict, placebo = flat[:, 0], np.full_like(flat[:, 0], np.nan)
        if flat.shape[1] > 1:
            placebo = flat[:, 1:].mean(axis=1)
        return np.stack([verdict, placebo, verdict - placebo], axis=-1)

    held = sums[:, 0, :, :, 1] > 0  # (cluster, unit, outcome)
    parts = np.concatenate([held.any(axis=-1, keepdims=True), held], axis=-1)
    present = np.repeat(parts.reshape(len(parts), -1)[..., None], len(TERMS), axis=-1)
    found = intervals(resample(sums, statistic, plan=plan, present=present))
    facts = {
        **attrs,
        "n_rollouts": int(used.sum()),
        "n_right": int((sample.reward[used] == 1).sum()),
        "n_tokens": int(sample.length[used].sum()),
    }
    result = dataset(found, {"statistic": tuple(STATISTICS), "term": TERMS}, attrs=facts)
    return result.assign_coords(
        unit=("statistic", ["1"] * len(STATISTICS)),
        meaning=("statistic", list(STATISTICS.values())),
    )


def _sums(
    sample: Sample, pairs: Sequence[Pair], *, used: Shaped[np.ndarray, " rollout"]
) -> Float[np.ndarray, " cluster unit outcome two"]:
    """Agreeing and all tokens, and responses, of each problem text and outcome, right first."""
    length = sample.length[used]
    d = contrast(*mean_shifts(sample, pairs))[np.asarray(broadcast(used, sample.length))]
    reward = sample.reward[used]
    table = np.zeros((len(length), len(UNITS), 2, 2))
    for outcome, (value, sign) in enumerate(((1.0, 1.0), (0.0, -1.0))):
        own = reward == value
        ones = (np.ones_like(d), np.ones(len(length)))
        agree = (_agrees(sign * d), _agrees(sign * segment_sum(d, length)))
        for column, (tokens, responses) in enumerate((agree, ones)):
            table[own, 0, outcome, column] = segment_sum(tokens, length)[own]
            table[own, 1, outcome, column] = responses[own]
    return cluster_sums(table, sample.cluster[used], clusters=sample.clusters)


def _agrees(values: Float[np.ndarray, " item"]) -> Float[np.ndarray, " item"]:
    """1 above 0, 1/2 at 0."""
    return np.asarray((values > 0) + 0.5 * (values == 0))
