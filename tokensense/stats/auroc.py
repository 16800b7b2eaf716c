"""Within-problem AUROC of a score for a right answer, balanced over who wrote the response.

Reads  scores, rewards, problems and generators of responses.
Gives  contests (a right against a wrong response of one problem) and the AUROC from sums over them.
Sign   above .5: the right response of a problem has the larger score.

AUROC     every right response against every wrong one of the same problem; ties count 1/2. A
          contest weighs 1 / (contests of its problem), so that every mixed problem counts once.
Balanced  responses to one problem may come from different generators, and any score that knows
          the generator then "knows" the answer. For each unordered pair of generators {a, b}, the
          mean over contests with a right and b wrong and the mean over contests with b right and a
          wrong get equal weight: a score that knows the generator alone gets .5 exactly. Generator
          pairs weigh 4 n m / (n + m), n and m the weights of the two orientations (their sum where
          they are equal); a generator against itself weighs its own. Pairs of generators seen in
          one orientation only drop out.
Plain     no such balance.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64, Shaped

from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import cluster_sums

ORIENTATIONS = ("balanced", "plain")


class Contests(NamedTuple):
    """Pairs of a right and a wrong response of one problem.

    Attributes:
        right: row of the right response.
        wrong: row of the wrong response.
        weight: 1 / pairs of the problem.
    """

    right: Int64[np.ndarray, " contest"]
    wrong: Int64[np.ndarray, " contest"]
    weight: Float[np.ndarray, " contest"]


class Orientations(NamedTuple):
    """Which orientations of generator pairs face each other.

    Attributes:
        code: orientation of each contest.
        forth: for each unordered generator pair, code of one orientation.
        back: code of the other; equal to `forth` for a generator against itself.
        total: number of codes.
    """

    code: Int64[np.ndarray, " contest"]
    forth: Int64[np.ndarray, " generators"]
    back: Int64[np.ndarray, " generators"]
    total: int


def contests(
    reward: Float[np.ndarray, " rollout"], problem: Int64[np.ndarray, " rollout"]
) -> Contests:
    """List all pairs of a right and a wrong response to the same problem.

    Args:
        reward: 1 right, 0 wrong; others, and NaN, take no part.
        problem: of each response.
    """
    right, wrong, weight = [], [], []
    order = np.argsort(problem, kind="stable")
    starts = np.flatnonzero(np.diff(problem[order], prepend=problem.min(initial=0) - 1))
    for rows in np.split(order, starts[1:]):
        winners, losers = rows[reward[rows] == 1], rows[reward[rows] == 0]
        if winners.size and losers.size:
            right.append(np.repeat(winners, losers.size))
            wrong.append(np.tile(losers, winners.size))
            pairs = winners.size * losers.size
            weight.append(np.full(pairs, 1.0 / pairs))
    if not right:
        empty = np.empty(0, dtype=np.int64)
        return Contests(empty, empty, np.empty(0))
    return Contests(np.concatenate(right), np.concatenate(wrong), np.concatenate(weight))


def orientations(met: Contests, generator: Shaped[np.ndarray, " rollout"]) -> Orientations:
    """Number the ordered generator pairs (right, wrong) that occur, with their opposites.

    Args:
        met: of `contests`.
        generator: name of the model that wrote each response.
    """
    names, number = np.unique(generator, return_inverse=True)
    total = len(names)
    ordered = number[met.right] * total + number[met.wrong]
    mirrored = number[met.wrong] * total + number[met.right]
    known = np.unique(np.concatenate([ordered, mirrored]))
    first, second = np.divmod(known, total) if total else (known, known)
    forth = np.flatnonzero(first <= second)
    back = np.searchsorted(known, second[forth] * total + first[forth])
    return Orientations(
        np.searchsorted(known, ordered).astype(np.int64),
        forth.astype(np.int64),
        back.astype(np.int64),
        len(known),
    )


def kernel(
    score: Float[np.ndarray, " rollout *score"], met: Contests
) -> Float[np.ndarray, " contest *score"]:
    """1 where the right response scores higher, 1/2 for a tie or a missing score, else 0.

    Args:
        score: of each response; NaN where it has none.
        met: of `contests`.
    """
    right, wrong = score[met.right], score[met.wrong]
    missing = np.isnan(right) | np.isnan(wrong)
    return np.asarray(np.where(missing, 0.5, (right > wrong) + 0.5 * (right == wrong)))


def auroc(
    totals: Float[np.ndarray, " row score_1 orientation"], faced: Orientations
) -> Float[np.ndarray, " row score orientation_2"]:
    """Balanced and plain AUROC from totals by orientation.

    Args:
        totals: weighted kernel sums of each score, and behind them the sums of the weights.
        faced: of `orientations`.

    Returns:
        Last dim as ORIENTATIONS; NaN where no contest is left.
    """
    won, met = totals[:, :-1], totals[:, -1:]
    share = np.where(met > 0, won / np.where(met > 0, met, 1.0), 0.0)
    forth, back = met[..., faced.forth], met[..., faced.back]
    both = np.where((forth > 0) & (back > 0), forth + back, np.inf)
    weight = np.where(faced.forth == faced.back, forth, 4 * forth * back / both)
    middle = (share[..., faced.forth] + share[..., faced.back]) / 2
    found = np.stack(
        [
            ratio((weight * middle).sum(axis=-1), weight.sum(axis=-1)),
            ratio(won.sum(axis=-1), met.sum(axis=-1)),
        ],
        axis=-1,
    )
    return np.asarray(found)


def generator_accuracy(
    generator: Shaped[np.ndarray, " rollout"],
    reward: Float[np.ndarray, " rollout"],
    cluster: Int64[np.ndarray, " rollout"],
) -> Float[np.ndarray, " rollout"]:
    """Share of right responses of the same generator to other problem texts.

    Args:
        generator: name of the model that wrote each response.
        reward: 1, 0; NaN takes no part.
        cluster: problem text of each response.

    Returns:
        In [0, 1]; NaN for a generator without a judged response elsewhere.
    """
    judged = ~np.isnan(reward)
    right = np.where(judged, reward, 0.0)
    _, group = np.unique(generator, return_inverse=True)
    _, here = np.unique(np.stack([group, cluster]), axis=1, return_inverse=True)
    other = [
        np.bincount(group, part)[group] - np.bincount(here.ravel(), part)[here.ravel()]
        for part in (right, judged.astype(np.float64))
    ]
    return ratio(other[0], other[1])


def contest_sums(
    scores: Float[np.ndarray, " rollout score"],
    cluster: Int64[np.ndarray, " rollout"],
    *,
    met: Contests,
    faced: Orientations,
    clusters: int,
) -> Float[np.ndarray, " cluster score_1 orientation"]:
    """Weighted kernel sums of each problem text by orientation, the sums of weights as last score.

    Args:
        scores: of each response; NaN where it has none.
        cluster: problem text of each response.
        met: of `contests`.
        faced: of `orientations`.
        clusters: number of problem texts.
    """
    won = np.concatenate([kernel(scores, met), np.ones((len(met.weight), 1))], axis=1)
    place = cluster[met.right] * faced.total + faced.code
    flat = cluster_sums(won * met.weight[:, None], place, clusters=clusters * faced.total)
    return np.moveaxis(flat.reshape(clusters, faced.total, -1), 1, 2)
