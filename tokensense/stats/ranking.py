"""How well a score finds the marked token of each trace: AUROC, average precision, hit@1, drawn.

Reads  a score and a mark of every token, the traces and problem texts that they belong to.
Gives  Shares of AUROC, average precision and hit@1; their Draws over resamples of problem texts.
Sign   the marked token should score highest.

All three are means over marked tokens of a share: of the others that score lower (ties 1/2), of
marked ones among all that score as high, of a hit. For each marked token, part and whole are sums
over problem texts, so that a resample of problems is a matrix product, though none of the three is
a function of totals: `resampling.resample` cannot do it. Pairs of tokens from different traces
count as often as both their problems were drawn.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.stats import rankdata

from tokensense.segments import broadcast, segment_max, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import BATCH_ELEMENTS, Draws, Resampling


class Traces(NamedTuple):
    """Tokens with one marked token a trace, those of a trace together.

    Attributes:
        marked: whether the token is the one to find.
        cluster: number of the problem text, 0 to clusters - 1, each with a trace.
        length: tokens of each trace.
        clusters: problem texts.
    """

    marked: Bool[np.ndarray, " token"]
    cluster: Int64[np.ndarray, " token"]
    length: Int64[np.ndarray, " rollout"]
    clusters: int

    @property
    def owner(self) -> Int64[np.ndarray, " marked"]:
        """Problem text of each marked token."""
        return np.asarray(self.cluster[self.marked])


class Shares(NamedTuple):
    """A share for each marked token, as counts that each problem text adds.

    Attributes:
        part: what is counted.
        whole: what it is a share of.
    """

    part: Float[np.ndarray, "marked cluster"]
    whole: Float[np.ndarray, "marked cluster"]


def wins(
    score: Float[np.ndarray, " token"], traces: Traces, *, stratum: Int64[np.ndarray, " token"]
) -> Shares:
    """For each marked token: the others of its stratum that score lower, ties 1/2, of all others.

    Args:
        score: of each token, any unit, infinite ones too; no NaN.
        traces: the tokens.
        stratum: number from 0 of what is compared with what; zeros for all with all.
    """
    others = ~traces.marked
    lower = _counts(score, traces, stratum=stratum, among=others, side="left")
    upto = _counts(score, traces, stratum=stratum, among=others, side="right")
    every = _counts(np.zeros_like(score), traces, stratum=stratum, among=others, side="right")
    return Shares((lower + upto) / 2, every)


def precisions(score: Float[np.ndarray, " token"], traces: Traces) -> Shares:
    """For each marked token: the marked ones among all that score as high or higher.

    Args:
        score: as for `wins`.
        traces: the tokens.
    """
    alike = np.zeros(score.size, dtype=np.int64)
    every = np.ones_like(traces.marked)
    return Shares(
        _counts(-score, traces, stratum=alike, among=traces.marked, side="right"),
        _counts(-score, traces, stratum=alike, among=every, side="right"),
    )


def hits(score: Float[np.ndarray, " token"], traces: Traces) -> Shares:
    """For each marked token: is it the highest of its trace; 1/k where k are.

    Args:
        score: as for `wins`.
        traces: the tokens.
    """
    top = score == broadcast(segment_max(score, traces.length), traces.length)
    among = segment_sum(top.astype(np.float64), traces.length)
    chance = top[traces.marked] / among
    own = np.zeros((len(traces.length), traces.clusters))
    own[np.arange(len(own)), traces.owner] = 1.0
    return Shares(own * chance[:, None], own)


def mean_shares(
    count: Float[np.ndarray, " draw cluster"],
    shares: Shares,
    *,
    owner: Int64[np.ndarray, " marked"],
) -> Float[np.ndarray, " draw"]:
    """Mean over marked tokens of part / whole.

    Args:
        count: how often each problem text is there.
        shares: of one statistic.
        owner: problem text of each marked token.

    Returns:
        NaN where no marked token has a whole.
    """
    part, whole = count @ shares.part.T, count @ shares.whole.T
    weight = count[:, owner] * (whole > 0)
    share = part / np.where(whole > 0, whole, 1.0)
    return np.asarray(ratio((weight * share).sum(axis=1), weight.sum(axis=1)))


def draws(statistics: Sequence[Shares], traces: Traces, *, plan: Resampling) -> Draws:
    """Compute statistics on the sample, on resamples of problem texts, and without each of them.

    Args:
        statistics: shares of each.
        traces: the tokens that they come from.
        plan: of as many clusters as the traces have.

    Returns:
        Draws with one output a statistic.
    """
    owner = traces.owner

    def means(count: np.ndarray) -> np.ndarray:
        return np.stack([mean_shares(count, each, owner=owner) for each in statistics], axis=1)

    batches = plan.counts(
        elements=BATCH_ELEMENTS * plan.clusters // max(plan.clusters, len(owner), 1)
    )
    every = np.ones((1, traces.clusters))
    estimate = means(every)[0]
    present = np.zeros((traces.clusters, len(statistics)), dtype=bool)
    for output, shares in enumerate(statistics):
        present[owner[shares.whole.any(axis=1)], output] = True
    clusters = present.sum(axis=0)
    pseudo = clusters * estimate - (clusters - 1) * means(every - np.eye(traces.clusters))
    return Draws(
        estimate,
        np.concatenate([means(count) for count in batches]),
        np.where(present, pseudo, np.nan),
        clusters.astype(np.int64),
    )


def _counts(
    score: Float[np.ndarray, " token"],
    traces: Traces,
    *,
    stratum: Int64[np.ndarray, " token"],
    among: Bool[np.ndarray, " token"],
    side: Literal["left", "right"],
) -> Float[np.ndarray, "marked cluster"]:
    """Tokens of each problem text, of `among`, below (left) or not above (right) each marked token.

    Only those of its own stratum count.
    """
    # One line of integers on which strata do not overlap: one search serves all of them.
    rank = rankdata(score, method="dense").astype(np.int64)
    span = int(rank.max(initial=0)) + 1
    line = stratum * span + rank
    place, bottom = line[traces.marked], stratum[traces.marked] * span
    order = np.flatnonzero(among)[np.lexsort((line[among], traces.cluster[among]))]
    borders = np.searchsorted(traces.cluster[order], np.arange(traces.clusters + 1))
    found = np.empty((place.size, traces.clusters))
    for cluster in range(traces.clusters):
        own = line[order[borders[cluster] : borders[cluster + 1]]]
        found[:, cluster] = np.searchsorted(own, place, side=side) - np.searchsorted(own, bottom)
    return found
