import numpy as np
import pytest
from scipy.optimize import minimize

from tokensense.stats.contests import (
    FOLDS,
    Contest,
    contest_of,
    crossfitted,
    crossfitted_steps,
    fit,
    folds_of,
)


def made(contests=60, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2 * contests, columns)) * np.array([1.0, 10.0, 0.1])[:columns]
    x[:contests, 0] += 0.8
    return x, contest_of(np.arange(contests), np.arange(contests, 2 * contests))


def test_fit_is_conditional_logistic_regression():
    from statsmodels.discrete.conditional_models import ConditionalLogit

    x, met = made()
    truth = np.repeat([1, 0], 60)
    peer = ConditionalLogit(truth, x, groups=np.tile(np.arange(60), 2)).fit(disp=False)
    found = fit(x[met.first] - x[met.second], met.weight, penalty=1e-9)
    np.testing.assert_allclose(found, peer.params, rtol=1e-4)


def test_fit_minimises_the_penalised_loss():
    x, met = made(seed=1)
    d = x[met.first] - x[met.second]
    weight = np.random.default_rng(2).uniform(0.1, 1, len(d))
    scale = np.sqrt(np.average(d**2, axis=0, weights=weight))

    def loss(b):
        return weight @ np.log1p(np.exp(-(d / scale) @ b)) + 0.5 * 1.0 * b @ b

    peer = minimize(loss, np.zeros(3), tol=1e-12)
    np.testing.assert_allclose(fit(d, weight), peer.x / scale, rtol=1e-4)


def test_separated_sides_and_constant_columns_have_finite_coefficients():
    d = np.stack([np.full(30, 5.0), np.zeros(30)], axis=1)
    found = fit(d, np.ones(30))
    assert 0 < found[0] < 10
    assert found[1] == 0


def test_every_wrong_step_weighs_one():
    met = contest_of(np.array([4, 4, 4, 7]), np.array([0, 1, 2, 3]))
    np.testing.assert_allclose(met.weight, [1 / 3, 1 / 3, 1 / 3, 1])
    assert contest_of(np.empty(0, int), np.empty(0, int)).weight.size == 0


def test_folds_are_of_equal_size_and_hang_on_the_seed():
    fold = folds_of(53, 0)
    assert set(np.bincount(fold)) == {5, 6}
    assert len(fold) == 53
    assert (fold != folds_of(53, 1)).any()
    np.testing.assert_array_equal(fold, folds_of(53, 0))


def test_a_contest_is_scored_by_the_model_that_saw_neither_side():
    x, met = made(contests=40)
    rng = np.random.default_rng(3)
    fold = rng.integers(0, FOLDS, len(x))
    met = Contest(met.first, rng.permutation(met.second), met.weight)
    found = crossfitted(x, met, fold)
    for contest in range(40):
        own = {fold[met.first[contest]], fold[met.second[contest]]}
        seen = [
            c for c in range(40) if fold[met.first[c]] not in own and fold[met.second[c]] not in own
        ]
        d = x[met.first] - x[met.second]
        expected = d[contest] @ fit(d[seen], np.ones(len(seen)))
        assert found[contest] == pytest.approx(expected)


def test_what_is_scored_does_not_change_its_own_model():
    x, met = made(contests=40)
    fold = np.tile(np.arange(FOLDS), 8)
    before = crossfitted(x, met, fold)
    after_x = x.copy()
    after_x[met.first[0]] *= 100.0
    after = crossfitted(after_x, met, fold)
    d = after_x[met.first[0]] - after_x[met.second[0]]
    assert after[0] == pytest.approx(
        d @ fit((x[met.first] - x[met.second])[fold[met.first] != 0], np.ones(36))
    )
    assert not np.allclose(before[1:], after[1:])


def test_one_fold_alone_has_nothing_to_fit_on():
    x, met = made(contests=5)
    assert np.isnan(crossfitted(x, met, np.zeros(10, int))).all()
    assert np.isnan(crossfitted_steps(x, met, np.zeros(10, int))).all()


def test_steps_are_scored_by_the_model_of_the_other_folds():
    x, met = made(contests=30)
    fold = np.tile(np.arange(3), 20)  # both sides of a contest in one fold
    found = crossfitted_steps(x, met, fold)
    d = x[met.first] - x[met.second]
    for own in range(3):
        b = fit(d[fold[met.first] != own], np.ones(20))
        np.testing.assert_allclose(found[fold == own], x[fold == own] @ b)
