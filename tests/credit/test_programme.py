"""The quadratic programme: optimality conditions, brute force, other solvers, gradients."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import qpsolvers
import quadprog
from scipy.optimize import lsq_linear, minimize

from tokensense.credit import programme as module
from tokensense.credit.filling import _by_sorting, water_filling
from tokensense.credit.programme import Programme, adjoint, kkt_residual, solve
from tokensense.errors import SchemaError


def drawn(rng, count, *, rank=0, bands=1, rollouts=1, span=3.0):
    """A random problem; lambda, phi and gamma over 10^-span to 10^span."""
    lam, phi, gamma = 10.0 ** rng.uniform(-span, span, 3)
    cuts = np.sort(rng.integers(0, count + 1, rollouts - 1))
    length = np.diff(np.concatenate([[0], cuts, [count]]))
    owner = np.repeat(np.arange(rollouts), length)
    links = np.zeros((bands, count))
    for k in range(1, min(bands, count - 1) + 1):
        links[k - 1, :-k] = gamma * rng.random(count - k) * (owner[k:] == owner[:-k])
    factors = rng.exponential(size=(count, rank))
    low, high = 0.5 * rng.random(), 1 + 2 * rng.random()
    return Programme(
        diagonal=lam * (rng.exponential(size=count) + 1e-2) + phi
        + gamma * factors @ factors.sum(axis=0),
        linear=phi * rng.exponential(size=count),
        length=length,
        total=length * (low + (high - low) * rng.uniform(0.1, 0.9)),
        low=np.full(count, low),
        high=np.full(count, high),
        links=links,
        factors=factors,
        signs=np.full(rank, -gamma),
    )  # fmt: skip


def dense(problem):
    return np.stack([problem.times(row) for row in np.eye(problem.diagonal.size)])


def value(problem, w):
    return w @ problem.times(w) / 2 - problem.linear @ w


CASES = [(seed, rank, bands) for seed in range(67) for rank, bands in ((0, 1), (0, 3), (3, 1))]


def test_two_hundred_problems_over_six_orders_meet_the_conditions_of_optimality():
    # H is positive definite: who meets them is the one solution.
    iterations = []
    for seed, rank, bands in CASES:
        rng = np.random.default_rng((seed, rank, bands))
        problem = drawn(rng, int(rng.integers(2, 80)), rank=rank, bands=bands)
        found = solve(problem)
        assert kkt_residual(problem, found) < 1e-12, (seed, rank, bands)
        iterations.append(found.iterations)
    assert np.mean(iterations) < 4


def test_several_rollouts_are_solved_at_once_as_each_alone():
    rng = np.random.default_rng(5)
    for rollouts in (2, 7, 30):
        problem = drawn(rng, 60, rollouts=rollouts)
        found = solve(problem)
        alone = np.concatenate([solve(problem.alone(r)).weights for r in range(rollouts)])
        np.testing.assert_allclose(found.weights, alone, rtol=1e-9, atol=1e-12)
        assert kkt_residual(problem, found) < 1e-12


def test_every_active_set_tried_one_by_one():
    rng = np.random.default_rng(1)
    for _ in range(12):
        problem = drawn(rng, 5, rank=2, span=1.0)
        h = dense(problem)
        best = np.inf
        for sets in itertools.product((-1, 0, 1), repeat=5):
            w = np.where(np.array(sets) < 0, problem.low, problem.high)
            free = np.array(sets) == 0
            if not free.any():
                continue
            n = int(free.sum())
            left = np.block([[h[np.ix_(free, free)], np.ones((n, 1))], [np.ones((1, n)), 0]])
            right = problem.linear[free] - h[np.ix_(free, ~free)] @ w[~free]
            w[free] = np.linalg.solve(left, [*right, problem.total[0] - w[~free].sum()])[:-1]
            inside = (w >= problem.low - 1e-12) & (w <= problem.high + 1e-12)
            best = min(best, value(problem, w)) if inside.all() else best
        assert value(problem, solve(problem).weights) == pytest.approx(best, rel=1e-10)


def test_scipy_finds_nothing_better():
    rng = np.random.default_rng(2)
    for _ in range(5):
        problem = drawn(rng, 30, rank=2, bands=2, span=1.0)
        h, scale = dense(problem), np.abs(problem.linear).max()
        came = minimize(
            lambda w, problem=problem, scale=scale: value(problem, w) / scale,
            np.full(30, problem.total[0] / 30),
            jac=lambda w, h=h, b=problem.linear, scale=scale: (h @ w - b) / scale,
            bounds=list(zip(problem.low, problem.high, strict=True)),
            constraints={"type": "eq", "fun": lambda w, s=problem.total[0]: w.sum() - s},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(solve(problem).weights, came.x, atol=2e-6)


def test_bounded_least_squares_of_scipy_agree_on_two_hundred_problems():
    # At our price the budget is a term of b, and scipy's active set minimizes the rest, exactly.
    for seed, rank, bands in CASES:
        rng = np.random.default_rng((seed, rank, bands))
        problem = drawn(rng, int(rng.integers(2, 16)), rank=rank, bands=bands)
        found = solve(problem)
        assert problem.sums(found.weights) == pytest.approx(problem.total, rel=1e-12)
        root = np.linalg.cholesky(dense(problem)).T
        right = np.linalg.solve(root.T, problem.linear - found.price[0])
        came = lsq_linear(
            root, right, (problem.low, problem.high), method="bvls", tol=1e-15, max_iter=200
        )
        np.testing.assert_allclose(found.weights, came.x, atol=1e-8)


def test_quadprog_and_a_second_solver_agree_on_two_hundred_problems():
    for seed, rank, bands in CASES:
        rng = np.random.default_rng((seed, rank, bands))
        count = int(rng.integers(2, 40))
        problem = drawn(rng, count, rank=rank, bands=bands)
        h = dense(problem)
        scale = np.abs(h).max()
        eye = np.eye(count)
        left = np.concatenate([np.ones((count, 1)), eye, -eye], axis=1)
        right = np.concatenate([problem.total, problem.low, -problem.high])
        came = quadprog.solve_qp(h / scale, problem.linear / scale, left, right, 1)[0]
        np.testing.assert_allclose(solve(problem).weights, came, atol=1e-8)
        again = qpsolvers.solve_qp(
            h / scale, -problem.linear / scale, A=np.ones((1, count)), b=problem.total,
            lb=problem.low, ub=problem.high, solver="quadprog",
        )  # fmt: skip
        np.testing.assert_allclose(solve(problem).weights, again, atol=1e-8)


def test_projected_gradient_comes_to_the_same():
    # The second way through our own code: another algorithm, the same minimum.
    rng = np.random.default_rng(8)
    for rank in (0, 2):
        problem = drawn(rng, 20, rank=rank, span=1.0)
        exact = solve(problem)
        bounded = module._checked(problem)
        start = np.full(20, problem.total[0] / 20)
        found = module._by_gradient(bounded, start)
        assert found.gradient_steps >= module.CHECK_EVERY
        np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-9)


def test_the_fall_back_takes_over_where_the_active_set_does_not_settle(monkeypatch):
    rng = np.random.default_rng(9)
    problem = drawn(rng, 40, rollouts=3, span=1.0)
    exact = solve(problem)
    settles = module._active_set

    def stubborn(programme, start, steps):
        return settles(programme, start, steps) if steps else None

    monkeypatch.setattr(module, "_active_set", stubborn)
    found = solve(problem)
    assert found.gradient_steps > 0
    np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-9)
    monkeypatch.setattr(module, "_active_set", lambda *_: None)
    monkeypatch.setattr(module, "GRADIENT_STEPS", 3000)
    np.testing.assert_allclose(solve(problem).weights, exact.weights, atol=1e-6)


def test_water_filling_by_newton_and_by_sorting():
    rng = np.random.default_rng(3)
    for _ in range(200):
        count = int(rng.integers(1, 30))
        h, b = 10.0 ** rng.uniform(-3, 3, count), rng.normal(0, 10, count)
        low = rng.random(count)
        bounds = (low, low + rng.exponential(size=count))
        total = low.sum() + rng.uniform(0.05, 0.95) * (bounds[1] - low).sum()
        w, price = water_filling(h, b, total=total, bounds=bounds)
        assert w.sum() == pytest.approx(total, rel=1e-12)
        other = _by_sorting(h, b, total=total, bounds=bounds)
        np.testing.assert_allclose(np.clip((b - other) / h, *bounds), w, rtol=1e-8)
        np.testing.assert_array_equal(np.clip((b - price) / h, *bounds), w)


def test_special_cases():
    rng = np.random.default_rng(4)
    v, c = rng.exponential(size=6) + 0.1, rng.exponential(size=6)
    none = np.zeros((0, 6))
    plain = Programme(
        diagonal=v, linear=np.zeros(6), length=np.array([6]), total=np.array([6.0]),
        low=np.zeros(6), high=np.full(6, np.inf), links=none, factors=np.zeros((6, 0)),
        signs=np.zeros(0),
    )  # fmt: skip
    np.testing.assert_allclose(solve(plain).weights, 6 / v / (1 / v).sum(), rtol=1e-12)
    faithful = replace(plain, diagonal=np.ones(6), linear=c / c.mean())
    np.testing.assert_allclose(solve(faithful).weights, c / c.mean(), rtol=1e-12)
    even = replace(plain, diagonal=np.full(6, 3.0), linear=np.ones(6), links=np.ones((1, 6)))
    even.links[0, -1] = 0
    np.testing.assert_allclose(solve(even).weights, 1, rtol=1e-15)
    stiff = replace(faithful, links=1e9 * even.links)
    np.testing.assert_allclose(solve(stiff).weights, 1, rtol=1e-8)
    tied = replace(faithful, low=np.ones(6), high=np.ones(6), links=even.links)
    assert solve(tied).weights.tolist() == [1] * 6
    full = replace(faithful, low=np.zeros(6), high=np.full(6, 1.0), total=np.array([6.0]))
    np.testing.assert_allclose(solve(full).weights, 1, rtol=1e-9)


def test_weights_rise_with_evidence_and_fall_with_noise():
    rng = np.random.default_rng(6)
    problem = drawn(rng, 25, span=1.0)
    problem = replace(problem, links=np.zeros((0, 25)))
    w = solve(problem).weights
    for token in range(25):
        more = problem.linear.copy()
        more[token] += 0.3
        assert solve(replace(problem, linear=more)).weights[token] >= w[token] - 1e-12
        noisy = problem.diagonal.copy()
        noisy[token] *= 1.5
        assert solve(replace(problem, diagonal=noisy)).weights[token] <= w[token] + 1e-12
    order = rng.permutation(25)
    turned = replace(problem, diagonal=problem.diagonal[order], linear=problem.linear[order])
    np.testing.assert_allclose(solve(turned).weights, w[order], rtol=1e-9)


def test_nothing_one_token_and_empty_rollouts():
    empty = drawn(np.random.default_rng(0), 0)
    assert solve(empty).weights.size == 0
    one = drawn(np.random.default_rng(0), 1)
    assert solve(one).weights == pytest.approx(one.total)
    length = np.array([0, 2, 0, 1])
    some = replace(
        drawn(np.random.default_rng(1), 3), length=length, total=length.astype(float),
        low=np.zeros(3), links=np.zeros((1, 3)),
    )  # fmt: skip
    found = solve(some)
    np.testing.assert_allclose(some.sums(found.weights), length, rtol=1e-12)


def test_the_adjoint_is_that_of_central_differences():
    rng = np.random.default_rng(7)
    for rank in (0, 2):
        problem = drawn(rng, 12, rank=rank, span=0.5)
        q = rng.normal(size=12)
        by_b, by_total = adjoint(problem, solve(problem), q)
        for token in range(12):
            ends = []
            for step in (1e-5, -1e-5):
                moved = problem.linear.copy()
                moved[token] += step
                ends.append(q @ solve(replace(problem, linear=moved)).weights)
            assert by_b[token] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)
        ends = [
            q @ solve(replace(problem, total=problem.total + step)).weights
            for step in (1e-5, -1e-5)
        ]
        assert by_total[0] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)


def test_what_has_no_solution_is_refused():
    problem = drawn(np.random.default_rng(0), 4)
    with pytest.raises(SchemaError, match=r"rollout 0 has 99\.0, with bounds that sum to"):
        solve(replace(problem, total=np.array([99.0])))
    with pytest.raises(SchemaError, match="`diagonal` needs positive numbers"):
        solve(replace(problem, diagonal=np.zeros(4)))
