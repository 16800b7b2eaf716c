"""OPTW in its own words, its gradients, and the cousins with a closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.credit.builders import LIBRARIES, arrays, evidence
from tests.credit.vectors import credit
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.credit.optimal import Optw, gradients, parts_of, programme_of
from tokensense.credit.programme import kkt_residual, solve
from tokensense.errors import SchemaError

libraries = pytest.mark.parametrize("library", LIBRARIES)


def drawn(*, features=0, effects=0, seed=0, count=14):
    rng = np.random.default_rng(seed)
    return parts_of(
        rng.exponential(size=count),
        rng.exponential(size=count),
        np.array([count]),
        features=rng.exponential(size=(count, features)) / 3,
        effects=rng.normal(size=(count, effects)),
        target=rng.normal(size=effects),
        low=0.6,
        high=1.6,
        reward=0.4 if effects else 0.0,
    )


def objective(parts, w):
    """The problem as it is written in the notes, term by term."""
    v, c = parts.noise, parts.evidence
    total = parts.variance / 2 * (v * w**2).sum() + parts.fidelity / 2 * ((w - c) ** 2).sum()
    count = w.size
    similar = parts.features @ parts.features.T
    for s in range(count):
        for t in range(s + 1, count):
            link = similar[s, t]
            if t - s <= len(parts.affinity):
                link += parts.affinity[t - s - 1, s]
            total += parts.smoothness / 2 * link * (w[s] - w[t]) ** 2
    return total + parts.reward / 2 * ((parts.effects.T @ w - parts.target) ** 2).sum()


@pytest.mark.parametrize(("features", "effects"), [(0, 0), (2, 0), (0, 2), (2, 1)])
def test_the_solution_minimizes_the_problem_as_it_is_written(features, effects):
    parts = drawn(features=features, effects=effects)
    programme = programme_of(parts)
    found = solve(programme)
    assert kkt_residual(programme, found) < 1e-12
    best = objective(parts, found.weights)
    rng = np.random.default_rng(1)
    for _ in range(200):
        move = rng.normal(size=14) * 10.0 ** rng.uniform(-4, -1)
        other = np.clip(found.weights + move - move.mean(), 0.6, 1.6)
        other += (14 - other.sum()) / 14
        if ((other >= 0.6) & (other <= 1.6)).all():
            assert objective(parts, other) >= best - 1e-12


@pytest.mark.parametrize(("features", "effects"), [(0, 0), (2, 0), (0, 2)])
def test_gradients_are_those_of_central_differences(features, effects):
    parts = drawn(features=features, effects=effects, seed=3)
    q = np.random.default_rng(2).normal(size=14)

    def loss(**changed):
        return q @ solve(programme_of(replace(parts, **changed))).weights

    def slope(name, index=None):
        step = 1e-5
        ends = []
        for sign in (1, -1):
            value = getattr(parts, name)
            moved = value + sign * step if index is None else np.array(value)
            if index is not None:
                moved[index] += sign * step
            ends.append(loss(**{name: moved}))
        return (ends[0] - ends[1]) / (2 * step)

    found = gradients(parts, solve(programme_of(parts)), q)
    at_bound = ~solve(programme_of(parts)).free
    assert at_bound.any()
    assert not at_bound.all()
    for name in ("low", "high", "variance", "fidelity", "smoothness", "reward"):
        if name != "reward" or effects:
            assert getattr(found, name) == pytest.approx(slope(name), rel=1e-5, abs=1e-7), name
    for name in ("noise", "evidence"):
        for token in range(14):
            expected = slope(name, token)
            assert getattr(found, name)[token] == pytest.approx(expected, rel=1e-5, abs=1e-7), name
    for token in range(13):
        expected = slope("affinity", (0, token))
        assert found.affinity[0, token] == pytest.approx(expected, rel=1e-5, abs=1e-7)
    for effect in range(effects):
        expected = slope("target", effect)
        assert found.target[effect] == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert found.total[0] == pytest.approx(slope("total", 0), rel=1e-5, abs=1e-7)


@libraries
def test_noisy_tokens_lose_and_bounds_hold(library):
    found = arrays([40, 7], seed=2)
    told = evidence(found, library)
    loose = np.asarray(weights_of(adjusted(CATALOGUE["optw"], smoothness=0.0), told))[:40]
    order = np.argsort(found["distance"][:40])
    assert (np.diff(loose[order]) <= 1e-12).all()
    tight = np.asarray(weights_of(adjusted(CATALOGUE["optw"], low=0.9, high=1.05), told))
    assert tight.min() >= 0.9
    assert tight.max() <= 1.05
    assert 0.9 in tight
    # The chain makes neighbors alike.
    chained = np.asarray(weights_of(adjusted(CATALOGUE["optw"], smoothness=5.0), told))[:40]
    assert np.abs(np.diff(chained)).sum() < np.abs(np.diff(loose)).sum()


def test_equal_noise_is_uniform():
    np.testing.assert_allclose(credit("optw", distance=[0.3, 0.3, 0.3]), 1, rtol=1e-14)
    np.testing.assert_allclose(credit("optw", distance=[0.0, 0.0]), 1, rtol=1e-14)


def test_other_weights_can_be_balanced():
    found = evidence(arrays([30], seed=4))
    score = weights_of(CATALOGUE["gcpo"], found)
    free = Optw(variance=0.0, smoothness=0.0, low=0.0, high=math.inf).balanced(score, found)
    np.testing.assert_allclose(free, score, rtol=1e-10)
    bounded = Optw().balanced(score, found)
    assert bounded.min() == 0.5
    assert bounded.mean() == pytest.approx(1, rel=1e-12)


@libraries
def test_vcore_by_hand(library):
    e = np.exp([0.2, -0.4, 1.0])
    found = credit("vcore", library, learning_value=[0.2, -0.4, 1.0])
    np.testing.assert_allclose(found, 3 * e / e.sum(), rtol=1e-12)


@libraries
@pytest.mark.parametrize("budget", [0.01, 0.1, 0.5])
def test_the_entropic_budget_is_spent_and_scale_plays_no_part(library, budget):
    value = np.array([0.2, -0.4, 1.0, 0.3])
    settings = {"budget": budget}
    w = credit("entropic_budget", library, learning_value=value, settings=settings)
    assert (w * np.log(w)).mean() == pytest.approx(budget, rel=1e-9)
    # It is of VCORE's form: log w is linear in the value.
    slope = np.diff(np.log(w)) / np.diff(value)
    np.testing.assert_allclose(slope, slope[0], rtol=1e-6)
    other = credit("entropic_budget", library, learning_value=1e-6 * value, settings=settings)
    np.testing.assert_allclose(other, w, rtol=1e-9)


def test_a_budget_beyond_the_best_token_puts_all_there():
    found = credit("entropic_budget", learning_value=[0.0, 1.0, 0.5], settings={"budget": 9.0})
    np.testing.assert_allclose(found, [0, 3, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("optw", {"variance": -1.0}), ("optw", {"fidelity": 0.0}), ("optw", {"smoothness": -1.0}),
        ("optw", {"low": 1.5}), ("optw", {"high": 0.5}), ("vcore", {"tau": -1.0}),
        ("entropic_budget", {"budget": -1.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        credit(name, settings=setting, distance=[0.0])
