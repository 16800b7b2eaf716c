"""A ridge logistic model of contests, fitted on other problems than those it scores.

Reads  what two sides of each contest are like, which problem text each side belongs to.
Gives  fit: coefficients; crossfitted: the score of the first side over the second.
Sign   above 0: the model holds the first side (the wrong step) for the wrong one.

Each contest sets a wrong step against another. The model is a logistic regression of the difference
of their columns without intercept: for one other step a contest it is conditional logistic
regression, in which whatever both sides share drops out. It minimises

    sum weight log(1 + exp(-b x)) + penalty / 2 |b|^2

with columns of x, and b, on the scale of their root mean square in the fit; a column that never
differs gets no coefficient. The penalty of 1 is that of one observation among as many as there are
wrong steps.

Problem texts are dealt into folds, and a contest is scored by the model that saw neither of its two
problems: with one side's problem in the fit, a step would help to predict itself.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.special import expit

FOLDS = 10
PENALTY = 1.0
ITERATIONS = 100
# Newton's decrement: twice the distance from the smallest loss that is left, nearly.
TOLERANCE = 1e-12


class Contest(NamedTuple):
    """Wrong steps against others.

    Attributes:
        first: row of the wrong step.
        second: row of the other.
        weight: 1 / contests of that wrong step.
    """

    first: Int64[np.ndarray, " contest"]
    second: Int64[np.ndarray, " contest"]
    weight: Float[np.ndarray, " contest"]


def contest_of(
    first: Int64[np.ndarray, " contest"], second: Int64[np.ndarray, " contest"]
) -> Contest:
    """Give every wrong step the weight one.

    Args:
        first: row of the wrong step of each contest.
        second: row of the other.
    """
    count = np.bincount(first) if first.size else np.ones(1)
    return Contest(first, second, 1.0 / count[first] if first.size else np.empty(0))


def fit(
    difference: Float[np.ndarray, " contest column"],
    weight: Float[np.ndarray, " contest"],
    *,
    penalty: float = PENALTY,
) -> Float[np.ndarray, " column"]:
    """Coefficients by Newton's method with halved steps; the loss is convex.

    Args:
        difference: columns of the first side minus those of the second, finite.
        weight: of the contests, not negative.
        penalty: of squared coefficients on the scaled columns, above 0.

    Returns:
        In units of 1 / column.
    """
    scale = np.sqrt(np.average(difference**2, axis=0, weights=weight))
    scale = np.where(scale > 0, scale, np.inf)
    x = difference / scale
    b = np.zeros(x.shape[1])

    def loss(b: np.ndarray) -> float:
        return float(weight @ np.logaddexp(0.0, -x @ b) + penalty / 2 * b @ b)

    for _ in range(ITERATIONS):
        missed = expit(-x @ b)
        gradient = penalty * b - x.T @ (weight * missed)
        curvature = (x * (weight * missed * (1 - missed))[:, None]).T @ x
        step = np.linalg.solve(curvature + penalty * np.eye(b.size), gradient)
        if gradient @ step < TOLERANCE:
            break
        size = 1.0
        while loss(b - size * step) > loss(b) and size > 1e-8:
            size /= 2
        b = b - size * step
    return np.asarray(b / scale)


def folds_of(clusters: int, seed: int) -> Int64[np.ndarray, " cluster"]:
    """Deal problem texts into folds of equal size.

    Args:
        clusters: problem texts.
        seed: of the order.
    """
    order = np.random.default_rng(seed).permutation(clusters)
    return np.asarray(np.argsort(order) % FOLDS, dtype=np.int64)


def crossfitted(
    columns: Float[np.ndarray, " step column"],
    met: Contest,
    fold: Int64[np.ndarray, " step"],
) -> Float[np.ndarray, " contest"]:
    """Score of each contest by the model that saw the folds of neither side.

    Args:
        columns: of each step, finite.
        met: the contests.
        fold: of each step.

    Returns:
        NaN where no contest is left to fit on.
    """
    one, other = fold[met.first], fold[met.second]
    code = np.minimum(one, other) * FOLDS + np.maximum(one, other)
    difference = columns[met.first] - columns[met.second]
    found = np.full(code.size, np.nan)
    for pair in np.unique(code).tolist():
        seen = _outside(one, pair) & _outside(other, pair)
        if seen.any():
            # A wrong step weighs one among the contests that are left of it.
            weight = contest_of(met.first[seen], met.second[seen]).weight
            at = code == pair
            found[at] = difference[at] @ fit(difference[seen], weight)
    return found


def crossfitted_steps(
    columns: Float[np.ndarray, " step column"],
    met: Contest,
    fold: Int64[np.ndarray, " step"],
) -> Float[np.ndarray, " step"]:
    """Score of each step by the model that did not see its fold; contests lie within problems.

    Args:
        columns: of each step, finite.
        met: contests of two steps of one problem text each.
        fold: of each step.

    Returns:
        NaN where no contest is left to fit on.
    """
    difference = columns[met.first] - columns[met.second]
    found = np.full(len(columns), np.nan)
    for own in np.unique(fold):
        seen = fold[met.first] != own
        if seen.any():
            found[fold == own] = columns[fold == own] @ fit(difference[seen], met.weight[seen])
    return found


def _outside(fold: Int64[np.ndarray, " contest"], pair: int) -> Bool[np.ndarray, " contest"]:
    """Whether a side lies in neither fold of a pair."""
    return np.asarray((fold != pair // FOLDS) & (fold != pair % FOLDS))
