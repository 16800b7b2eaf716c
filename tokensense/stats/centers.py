"""DelTA's two centers: how far apart, made of what, and do they tell unseen responses apart?

Reads  a Geometry of token vectors (credit.delta: stored vectors, the whole head, exact gradients),
       advantages of the tokens' responses, problems, tokens to leave out.
Gives  center_numbers (masses, cosine, contrast, cancellation, tilt), removal (with intervals: what
       some tokens do to the cosine, against as many random ones), held_out (discriminator and
       contrast on other problems, K = 0, 1, ...), contrast_change, pooled_alpha.
Sign   a token with a positive alignment v.(mu+ - mu-) looks like those of right responses.

Every number but the intervals of `removal` needs alignments and norms only, so that it is the same
function for proxies and for exact gradients. With d = ||mu+ - mu-||^2, which is the sum over tokens
of (w+ - w-) v.(mu+ - mu-), the product of the centers is (||mu+||^2 + ||mu-||^2 - d) / 2.

Held out   Problems are dealt into folds. Centers come from the other folds; a token of the fold is
           scored by its alignment with them, and weighed as if it had been in the pool. The unit is
           the problem with responses of both sides: one AUROC each, ties 1/2.

Source: methods/delta.md section 6, A to C and K; claims 16 to 18 of methods/claims.md.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from scipy.stats import rankdata

from tokensense.credit.delta import Contrast, Geometry, fit, sigmoid
from tokensense.errors import StatisticsError
from tokensense.segments import broadcast, segment_ranks
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import (
    Estimates,
    Resampling,
    Statistic,
    cluster_sums,
    intervals,
    resample,
)

CENTER_NUMBERS: dict[str, str] = {
    "mass_positive": "M+, sum of A over tokens with A > 0",
    "mass_negative": "M-, sum of |A| over tokens with A < 0",
    "tilt": "M+ / M-",
    "cosine": "cosine of mu+ and mu-",
    "contrast": "||mu+ - mu-|| / (||mu+|| + ||mu-||)",
    "cancellation": "||M+ mu+ - M- mu-|| / (M+ ||mu+|| + M- ||mu-||): what is left of the update",
}


class HeldOut(NamedTuple):
    """What centers of other problems say about a problem; rows are refinements, as asked for.

    auroc: token alignment for the side of its response, one a problem. alpha: of every token, made
    with those centers. problem: the problems with both sides, as the columns of `auroc`.
    """

    auroc: Float64[np.ndarray, "refinement problem"]
    alpha: Float64[np.ndarray, "refinement token"]
    problem: Int64[np.ndarray, " problem"]


class Removal(NamedTuple):
    """Cosine of the centers, with intervals over problems.

    whole: of all tokens. fall: that minus the cosine without the tokens asked about. random_fall:
    the same without as many random ones of the same responses, mean of draws. excess: fall minus
    random_fall.
    """

    whole: Estimates
    fall: Estimates
    random_fall: Estimates
    excess: Estimates


def sides(
    advantage: Float64[np.ndarray, " token"],
    coefficients: Float64[np.ndarray, " token"] | None = None,
) -> tuple[Float64[np.ndarray, " token"], Float64[np.ndarray, " token"]]:
    """Masses of the tokens of both sides, A and |A|, times the coefficients of a rule.

    Args:
        advantage: of each token's response.
        coefficients: of the rule, such as lambda; None for 1.
    """
    mass = advantage if coefficients is None else advantage * coefficients
    return np.maximum(mass, 0.0), np.maximum(-mass, 0.0)


def center_numbers(
    geometry: Geometry,
    advantage: Float64[np.ndarray, " token"],
    coefficients: Float64[np.ndarray, " token"] | None = None,
) -> dict[str, float]:
    """Values of CENTER_NUMBERS.

    Args:
        geometry: of the token vectors.
        advantage: of each token's response.
        coefficients: of a rule; 0 leaves a token out.

    Raises:
        StatisticsError: one of the sides has no mass.
    """
    masses = sides(advantage, coefficients)
    total = [float(mass.sum()) for mass in masses]
    if not min(total) > 0:
        raise StatisticsError(
            f"two centers need tokens of right and of wrong responses; the masses are {total}. "
            "Give a pool with mixed groups, and coefficients that leave some of both."
        )
    weights = [mass / all_of for mass, all_of in zip(masses, total, strict=True)]
    found = geometry(*weights)
    return dict(
        zip(
            CENTER_NUMBERS,
            (*total, total[0] / total[1], *_apart(found, weights, total)),
            strict=True,
        )
    )


def _apart(found: Contrast, weights: list[np.ndarray], total: list[float]) -> tuple[float, ...]:
    """Cosine, contrast and cancellation."""
    apart = max(float((weights[0] - weights[1]) @ found.alignment), 0.0)
    product = (found.positive + found.negative - apart) / 2
    lengths = math.sqrt(found.positive), math.sqrt(found.negative)
    update = (
        total[0] ** 2 * found.positive
        + total[1] ** 2 * found.negative
        - 2 * total[0] * total[1] * product
    )
    most = total[0] * lengths[0] + total[1] * lengths[1]
    both = lengths[0] * lengths[1]
    return (
        product / both if both else math.nan,
        math.sqrt(apart) / sum(lengths) if sum(lengths) else math.nan,
        math.sqrt(max(update, 0.0)) / most if most else math.nan,
    )


def removal(
    vectors: Float[np.ndarray, "token dim"],
    advantage: Float64[np.ndarray, " token"],
    removed: Bool[np.ndarray, " token"],
    *,
    length: Int64[np.ndarray, " rollout"],
    problem: Int64[np.ndarray, " rollout"],
    draws: int = 8,
    resamples: int = 10_000,
    seed: int = 0,
) -> Removal:
    """Do some tokens, such as those of format, make the centers alike?

    Args:
        vectors: of stored proxies.
        advantage: of each token's response.
        removed: the tokens asked about.
        length: tokens per rollout.
        problem: number of each rollout's problem text, from 0.
        draws: random removals, as many tokens of each rollout.
        resamples: of problems.
        seed: of both.
    """
    rng = np.random.default_rng(seed)
    count = np.add.reduceat(removed, (np.cumsum(length) - length)[length > 0])
    each = np.zeros(length.size)
    each[length > 0] = count
    kept = [np.ones_like(removed), ~removed]
    for _ in range(draws):
        kept.append(segment_ranks(rng.random(removed.size), length) > broadcast(each, length))
    masses = [mass * keep for keep in kept for mass in sides(advantage)]

    def statistic(totals: np.ndarray) -> np.ndarray:
        means = _means(totals, rows=len(kept))
        product = (means[:, :, 0] * means[:, :, 1]).sum(-1)
        size = np.sqrt((means**2).sum(-1)).prod(-1)
        cosine = ratio(product, size)
        fall, random = cosine[:, 0] - cosine[:, 1], cosine[:, 0] - cosine[:, 2:].mean(1)
        return np.stack([cosine[:, 0], fall, random, fall - random], axis=1)

    owner = broadcast(problem, length)
    found = _resampled(vectors, masses, owner, statistic, resamples=resamples, seed=seed)
    return Removal(*map(found.part, range(4)))


def held_out(
    geometry: Geometry,
    advantage: Float64[np.ndarray, " token"],
    problem: Int64[np.ndarray, " token"],
    *,
    refinements: tuple[int, ...] = (0, 1, 2, 3),
    folds: int = 4,
    seed: int = 0,
) -> HeldOut:
    """Discriminator and alphas on problems that the centers have not seen.

    Args:
        geometry: of the vectors of all tokens.
        advantage: of each token's response.
        problem: number of each token's problem text.
        refinements: numbers of refinements K to compare.
        folds: of problems.
        seed: of the folds.

    Raises:
        StatisticsError: no problem has responses of both sides, or a fold leaves a side empty.
    """
    names, number = np.unique(problem, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(names.size) % folds)[number]
    score = np.zeros((len(refinements), advantage.size))
    alpha = np.zeros_like(score)
    for own in range(folds):
        here = fold == own
        for row, k in enumerate(refinements):
            found = fit(geometry, np.where(here, 0.0, advantage), refinements=k)
            if found is None:
                raise StatisticsError(
                    f"held-out centers need right and wrong responses in the other folds; fold "
                    f"{own} of {folds} leaves one side empty. Use fewer folds or more problems."
                )
            contrast = geometry(*found.weights)
            toward = 2 * contrast.alignment + (contrast.negative - contrast.positive)
            gamma = np.where(advantage > 0, *found.gamma)
            score[row, here] = contrast.alignment[here]
            alpha[row, here] = sigmoid(np.where(advantage > 0, toward, -toward) / gamma)[here]
    mixed = [p for p in range(names.size) if _both(advantage[number == p])]
    if not mixed:
        raise StatisticsError(
            "a held-out discriminator needs a problem with right and wrong responses; there is "
            "none. Sample several responses a problem."
        )
    auroc = np.array(
        [[_auroc(row[number == p], advantage[number == p]) for p in mixed] for row in score]
    )
    return HeldOut(auroc, alpha, names[mixed].astype(np.int64))


def contrast_change(
    vectors: Float[np.ndarray, "token dim"],
    advantage: Float64[np.ndarray, " token"],
    coefficients: Float64[np.ndarray, " token"],
    *,
    problem: Int64[np.ndarray, " token"],
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimates:
    """Contrast of the centers under coefficients over that without them, minus 1.

    With coefficients of held-out alphas: do centers that others chose lie further apart?

    Args:
        vectors: of stored proxies.
        advantage: of each token's response.
        coefficients: of each token, fixed.
        problem: number of each token's problem text, from 0; the unit of resampling.
        resamples: of problems.
        seed: of the resamples.
    """
    masses = [*sides(advantage), *sides(advantage, coefficients)]

    def statistic(totals: np.ndarray) -> np.ndarray:
        means = _means(totals, rows=2)
        apart = np.linalg.norm(means[:, :, 0] - means[:, :, 1], axis=-1)
        contrast = ratio(apart, np.linalg.norm(means, axis=-1).sum(-1))
        return np.asarray(ratio(contrast[:, 1:], contrast[:, :1]) - 1)

    found = _resampled(vectors, masses, problem, statistic, resamples=resamples, seed=seed)
    return found.part(0)


def pooled_alpha(
    geometry: Geometry,
    advantage: Float64[np.ndarray, " token"],
    pool: Shaped[np.ndarray, " token"],
    *,
    refinements: int = 1,
) -> Float64[np.ndarray, " token"]:
    """Alpha where each pool (a group, a rank) has centers of its own; NaN where it lacks a side.

    Args:
        geometry: of the vectors of all tokens.
        advantage: of each token's response.
        pool: label of the pool of each token.
        refinements: K.
    """
    alpha = np.full(advantage.size, np.nan)
    for label in np.unique(pool):
        here = pool == label
        found = fit(geometry, np.where(here, advantage, 0.0), refinements=refinements)
        if found is not None:
            alpha[here & (advantage != 0)] = found.alpha[here & (advantage != 0)]
    return alpha


def _means(
    totals: Float[np.ndarray, "row side dim_1"], *, rows: int
) -> Float[np.ndarray, "row weighting 2 dim"]:
    """Centers of each weighting from sums of vectors and masses."""
    means = ratio(totals[..., :-1], totals[..., -1:])
    return means.reshape(len(means), rows, 2, -1)


def _resampled(
    vectors: Float[np.ndarray, "token dim"],
    masses: list[np.ndarray],
    owner: Int64[np.ndarray, " token"],
    statistic: Statistic,
    *,
    resamples: int,
    seed: int,
) -> Estimates:
    """A statistic of centers, with intervals over problems; masses come in pairs of sides."""
    clusters = int(owner.max(initial=0)) + 1
    sums = np.stack(
        [
            cluster_sums(np.column_stack([vectors * mass[:, None], mass]), owner, clusters=clusters)
            for mass in masses
        ],
        axis=1,
    )
    has_tokens = sums[:, :2, -1].sum(axis=1) > 0
    outputs = statistic(sums.sum(axis=0, keepdims=True)).shape[-1]
    present = np.repeat(has_tokens[:, None], outputs, axis=1)
    plan = Resampling(clusters, resamples, seed)
    return intervals(resample(sums, statistic, plan=plan, present=present))


def _both(advantage: Float64[np.ndarray, " token"]) -> bool:
    return bool((advantage > 0).any() and (advantage < 0).any())


def _auroc(score: Float64[np.ndarray, " token"], advantage: Float64[np.ndarray, " token"]) -> float:
    """Chance that a token of a right response scores higher than one of a wrong response."""
    right = advantage[advantage != 0] > 0
    ranks = rankdata(score[advantage != 0])
    positive, negative = int(right.sum()), int((~right).sum())
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))
