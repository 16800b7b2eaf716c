"""A quadratic programme over the tokens of each rollout, solved exactly in nearly linear time.

Reads  Programme: H in parts, b, a budget and bounds; float64 arrays on the host.
Gives  solve, its Solution; adjoint, what a change of the solution asks of b and of the budget.
Sign   minimization; `price` is what one more unit of budget costs, negated gradient of free tokens.

    min over w   1/2 w'H w - b'w   with, in each rollout, sum of w = total, low <= w <= high
    H = diag(diagonal) + Laplacian of the links + K diag(signs) K'

Solver     Primal-dual active set: fix the tokens at bounds, solve the rest exactly, release and fix
           by the signs of the multipliers, until nothing changes; from the solution without links
           and factors, which is water-filling. One iteration is a banded Cholesky factorization
           with two right sides, or more for the factors K (Woodbury). Where it does not settle,
           accelerated projected gradient with restarts brings it close and the active set ends it.
Source     own design, methods/gcpo_and_optimal_weights.md 2.6.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.linalg import solve as solve_dense
from scipy.linalg import solveh_banded

from tokensense.credit.filling import Tokens, water_filling
from tokensense.errors import SchemaError
from tokensense.segments import segment_index

ITERATIONS = 60  # of the active set; it takes 2 to 6 where it settles at all
GRADIENT_STEPS = 20_000
CHECK_EVERY = 100  # gradient steps between two trials of the active set
FEASIBLE = 1e-9  # budgets beyond the bounds by this share are rounding


@dataclass(frozen=True)
class Programme:
    """What `solve` solves. All arrays float64 but `length`.

    Attributes:
        diagonal: (token) > 0.
        linear: (token) b.
        length: (rollout) tokens.
        total: (rollout) what the weights of a rollout sum to.
        low: (token) lower bounds, finite.
        high: (token) upper bounds, may be infinite.
        links: (band, token) entry [k, t] ties tokens t and t + k + 1 with that strength >= 0; 0
            where they are not in one rollout.
        factors: (token, rank) K; only where there is one rollout.
        signs: (rank) any sign, as long as H stays positive definite.
    """

    diagonal: Tokens
    linear: Tokens
    length: Int64[np.ndarray, " rollout"]
    total: Float64[np.ndarray, " rollout"]
    low: Tokens
    high: Tokens
    links: Float64[np.ndarray, "band token"]
    factors: Float64[np.ndarray, "token rank"]
    signs: Float64[np.ndarray, " rank"]

    @cached_property
    def owner(self) -> Int64[np.ndarray, " token"]:
        """Rollout of each token."""
        return np.asarray(segment_index(self.length))

    @cached_property
    def banded_diagonal(self) -> Tokens:
        """Diagonal of H without the factors."""
        degree = np.array(self.diagonal)
        for k, link in enumerate(self.links, start=1):
            degree += link
            degree[k:] += link[:-k]
        return degree

    @cached_property
    def curvature(self) -> Tokens:
        """Diagonal of H."""
        return np.asarray(self.banded_diagonal + self.factors**2 @ self.signs)

    def times(self, w: Tokens) -> Tokens:
        """H w.

        Args:
            w: of every token.
        """
        result = self.banded_diagonal * w
        for k, link in enumerate(self.links, start=1):
            result[:-k] -= link[:-k] * w[k:]
            result[k:] -= link[:-k] * w[:-k]
        if self.signs.size:
            result += self.factors @ (self.signs * (self.factors.T @ w))
        return np.asarray(result)

    def sums(self, values: Tokens) -> Float64[np.ndarray, " rollout"]:
        """Sum over each rollout.

        Args:
            values: of every token.
        """
        total = np.bincount(self.owner, weights=values, minlength=self.length.size)
        return np.asarray(total, dtype=np.float64)  # of no tokens, `bincount` makes whole numbers

    def alone(self, rollout: int) -> "Programme":
        """The programme of one rollout.

        Args:
            rollout: its index.
        """
        stop = int(self.length[: rollout + 1].sum())
        part = slice(stop - int(self.length[rollout]), stop)
        one = slice(rollout, rollout + 1)
        cut = {name: getattr(self, name)[part] for name in ("diagonal", "linear", "low", "high")}
        links, factors = self.links[:, part], self.factors[part]
        return replace(
            self, **cut, length=self.length[one], total=self.total[one], links=links,
            factors=factors,
        )  # fmt: skip


class Solution(NamedTuple):
    """The minimum, and what it took.

    Attributes:
        weights: (token).
        price: (rollout) multiplier of the budget: b - H w on free tokens.
        free: (token) strictly between its bounds.
        iterations: of the active set.
        gradient_steps: of the fall-back; 0 where it was not needed.
    """

    weights: Tokens
    price: Float64[np.ndarray, " rollout"]
    free: Bool[np.ndarray, " token"]
    iterations: int
    gradient_steps: int


def solve(programme: Programme) -> Solution:
    """The unique minimum, exact up to rounding.

    Args:
        programme: with a positive definite H.

    Raises:
        SchemaError: a budget cannot be met within the bounds, or `diagonal` is not positive.
    """
    bounded = _checked(programme)
    if not programme.diagonal.size:
        return Solution(programme.linear, np.zeros(programme.length.size), programme.low > 0, 0, 0)
    return _solve(bounded)


def _solve(programme: Programme) -> Solution:
    if not programme.signs.size and not programme.links.any():
        return _separable(programme)
    start = _separable(programme).weights
    found = _active_set(programme, start, 0)
    if found is not None:
        return found
    if programme.length.size == 1:
        return _by_gradient(programme, start)
    return _one_by_one(programme)


def kkt_residual(programme: Programme, solution: Solution) -> float:
    """Largest violation of the optimality conditions, in units of b over its largest entry.

    Args:
        programme: that was solved.
        solution: of it.
    """
    w = solution.weights
    gap = programme.linear - programme.times(w) - solution.price[programme.owner]
    at_low, at_high = w <= programme.low, w >= programme.high
    wrong = np.where(at_low & at_high, 0.0, np.where(at_low, np.maximum(gap, 0), np.abs(gap)))
    wrong = np.where(at_high & ~at_low, np.maximum(-gap, 0), wrong)
    outside = np.maximum(programme.low - w, w - programme.high)
    budget = np.abs(programme.sums(w) - programme.total) / np.maximum(programme.length, 1)
    scale = np.abs(programme.linear).max(initial=1.0) + np.abs(programme.curvature).max(initial=0)
    return float(max(wrong.max(initial=0) / scale, outside.max(initial=0), budget.max(initial=0)))


def adjoint(
    programme: Programme, solution: Solution, gradient: Tokens
) -> tuple[Tokens, Float64[np.ndarray, " rollout"]]:
    """Gradient of a loss with respect to b, and to the budget, from that with respect to w.

    Valid where no token is about to reach or to leave a bound; there it is one of several.

    Args:
        programme: that was solved.
        solution: of it.
        gradient: d loss / d w.

    Returns:
        d loss / d b (token), 0 on tokens at bounds; d loss / d total (rollout).
    """
    free = solution.free
    raw, ones = _solved(programme, free, np.stack([gradient, np.ones_like(gradient)]))
    denominator = programme.sums(ones)
    some = denominator > 0
    eta = np.where(some, programme.sums(raw) / np.where(some, denominator, 1), 0.0)
    return raw - eta[programme.owner] * ones, eta


def _checked(programme: Programme) -> Programme:
    """Refuse what has no solution; make bounds finite that the budget makes so anyway."""
    low, high = programme.low, programme.high
    if not (programme.diagonal > 0).all() or not np.isfinite(low).all():
        raise SchemaError(
            f"`diagonal` needs positive numbers and `low` finite ones; the smallest are "
            f"{programme.diagonal.min(initial=np.inf)} and {low.min(initial=np.inf)}. Give the "
            "fidelity a positive weight, and every token a lower bound."
        )
    least, most = programme.sums(low), programme.sums(high)
    slack = FEASIBLE * (np.abs(programme.total) + 1)
    wrong = (
        (programme.total < least - slack) | (programme.total > most + slack) | (low > high).any()
    )
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise SchemaError(
            f"a budget needs to lie between the sums of the bounds; rollout {first} has "
            f"{programme.total[first]}, with bounds that sum to {least[first]} and {most[first]}. "
            "Widen the bounds."
        )
    # No weight can exceed the budget less the lower bounds of all others; twice that never binds.
    room = np.maximum(programme.total - least, 0)[programme.owner]
    return replace(programme, high=np.minimum(high, low + 2 * room + 1))


def _separable(programme: Programme) -> Solution:
    """Water-filling: exact without links and factors, else where the active set starts."""
    w = np.empty_like(programme.linear)
    price = np.zeros(programme.length.size)
    stop = 0
    for rollout, count in enumerate(programme.length):
        part = slice(stop, stop + int(count))
        stop += int(count)
        if count:
            w[part], price[rollout] = water_filling(
                programme.curvature[part],
                programme.linear[part],
                total=float(programme.total[rollout]),
                bounds=(programme.low[part], programme.high[part]),
            )
    return Solution(w, price, (w > programme.low) & (w < programme.high), 0, 0)


def _active_set(programme: Programme, start: Tokens, gradient_steps: int) -> Solution | None:
    """Primal-dual active set from the bounds that `start` is at; None where it does not settle."""
    low, high, owner = programme.low, programme.high, programme.owner
    at_low, at_high = start <= low, (start >= high) & (start > low)
    for iteration in range(1, ITERATIONS + 1):
        free = ~(at_low | at_high)
        fixed = np.where(at_low, low, np.where(at_high, high, 0.0))
        right = programme.linear - programme.times(fixed)
        part, ones = _solved(programme, free, np.stack([right, np.ones_like(right)]))
        rate, excess = programme.sums(ones), programme.sums(part + fixed) - programme.total
        stuck = rate <= 0
        price = np.where(stuck, 0.0, excess / np.where(stuck, 1.0, rate))
        w = np.where(free, part - price[owner] * ones, fixed)
        gap = programme.linear - programme.times(w)
        if stuck.any():
            if not _settled_at_bounds(excess, stuck, programme):
                return None
            price = np.where(stuck, _middle_price(gap, at_low, at_high, programme), price)
        multiplier = np.where(free, 0.0, gap - price[owner])
        # A token whose bounds are equal stays where it is.
        moved_high = multiplier + programme.curvature * (w - high) > 0
        moved_low = (multiplier + programme.curvature * (w - low) < 0) | (low >= high)
        moved_high &= ~moved_low
        if (moved_high == at_high).all() and (moved_low == at_low).all():
            inside = np.clip(w, low, high)
            return Solution(inside, price, free, iteration, gradient_steps)
        at_low, at_high = moved_low, moved_high
    return None


def _settled_at_bounds(
    excess: Float64[np.ndarray, " rollout"],
    stuck: Bool[np.ndarray, " rollout"],
    programme: Programme,
) -> bool:
    """Whether rollouts without a free token meet their budget."""
    tolerance = FEASIBLE * (np.abs(programme.total) + 1)
    return bool((np.abs(excess)[stuck] <= tolerance[stuck]).all())


def _middle_price(
    gap: Tokens,
    at_low: Bool[np.ndarray, " token"],
    at_high: Bool[np.ndarray, " token"],
    programme: Programme,
) -> Float64[np.ndarray, " rollout"]:
    """A price that leaves all tokens of a rollout at their bounds, if there is one."""
    least, most = (np.full(programme.length.size, end) for end in (-np.inf, np.inf))
    tied = programme.low >= programme.high
    np.maximum.at(least, programme.owner[at_low & ~tied], gap[at_low & ~tied])
    np.minimum.at(most, programme.owner[at_high & ~tied], gap[at_high & ~tied])
    both = np.isfinite(least) & np.isfinite(most)
    one = np.where(np.isfinite(least), least, np.where(np.isfinite(most), most, 0.0))
    return np.where(both, np.where(both, least, 0) / 2 + np.where(both, most, 0) / 2, one)


def _solved(
    programme: Programme,
    free: Bool[np.ndarray, " token"],
    rows: Float64[np.ndarray, "row token"],
) -> Float64[np.ndarray, "row token"]:
    """H^-1 of each row on the free tokens; 0 on the others."""
    rank = programme.signs.size
    right = np.concatenate([rows, programme.factors.T]) * free
    solved = _banded(programme, free, right)
    if not rank:
        return solved
    plain, factors = solved[:-rank], solved[-rank:]
    inner = np.diag(1 / programme.signs) + factors @ right[-rank:].T
    return np.asarray(plain - solve_dense(inner, right[-rank:] @ plain.T).T @ factors)


def _banded(
    programme: Programme,
    free: Bool[np.ndarray, " token"],
    right: Float64[np.ndarray, "row token"],
) -> Float64[np.ndarray, "row token"]:
    """Solve without the factors; tokens at bounds are cut off from the rest."""
    diagonal = np.where(free, programme.banded_diagonal, 1.0)
    if not programme.links.any():
        return right / diagonal
    bands = np.zeros((1 + len(programme.links), free.size))
    bands[0] = diagonal
    for k, link in enumerate(programme.links, start=1):
        bands[k, :-k] = -link[:-k] * (free[:-k] & free[k:])
    return np.asarray(solveh_banded(bands, right.T, lower=True, check_finite=False).T)


def _one_by_one(programme: Programme) -> Solution:
    """Solve rollouts apart, because some of them did not settle together."""
    parts = [solve(programme.alone(r)) for r in range(programme.length.size)]
    return Solution(
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.price for part in parts]),
        np.concatenate([part.free for part in parts]),
        max(part.iterations for part in parts),
        max(part.gradient_steps for part in parts),
    )


def _by_gradient(programme: Programme, start: Tokens) -> Solution:
    """Accelerated projected gradient with restarts; the active set is tried now and then."""
    bound = float(programme.curvature.max() + 2 * programme.links.sum(axis=0).max(initial=0))
    bound += float((programme.factors**2 @ np.maximum(programme.signs, 0)).sum())
    w = leap = start
    momentum, total = 1.0, float(programme.total[0])
    for step in range(1, GRADIENT_STEPS + 1):
        target = leap - (programme.times(leap) - programme.linear) / bound
        new, price = water_filling(
            np.ones_like(target), target, total=total, bounds=(programme.low, programme.high)
        )
        if float((leap - new) @ (new - w)) > 0:
            momentum = 1.0  # it turned back: start anew from here
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        leap = new + (momentum - 1) / following * (new - w)
        w, momentum = new, following
        if step % CHECK_EVERY == 0:
            found = _active_set(programme, w, step)
            if found is not None:
                return found
    free = (w > programme.low) & (w < programme.high)
    return Solution(w, np.array([price * bound]), free, 0, GRADIENT_STEPS)
