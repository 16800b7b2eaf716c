"""The network in front of OPTW: its gradient, what it starts as, what it learns."""

import numpy as np
import pytest

from tokensense.credit.base import by_weight, weights_of
from tokensense.credit.evidence import Evidence
from tokensense.credit.optimal import Optw
from tokensense.credit.weight_network import (
    NEEDS,
    WeightNetwork,
    columns,
    fit,
    objective,
    step_gradient,
)
from tokensense.errors import SchemaError, StatisticsError


def batch(seed, *, length=(5, 0, 7, 4)):
    """Learning value that lies on undecided tokens alone, up to noise."""
    rng = np.random.default_rng(seed)
    tokens = sum(length)
    entropy = rng.exponential(size=tokens)
    advantage = np.resize([1.0, -1.0], len(length))
    spread = np.repeat(advantage, length)
    return Evidence(
        length=np.array(length),
        advantage=advantage,
        logp=-rng.exponential(size=tokens),
        entropy=entropy,
        distance=0.2 + rng.random(tokens),
        learning_value=spread * (entropy > 1) + 0.1 * rng.normal(size=tokens),
    )


def network(seed=0, **optw):
    rng = np.random.default_rng(seed)
    return WeightNetwork(
        np.full(5, 0.3), np.full(5, 2.0), rng.normal(size=(6, 3)), rng.normal(size=4), Optw(**optw)
    )


@pytest.mark.parametrize("optw", [{}, {"low": 0.0, "high": 50.0}, {"smoothness": 0.0}])
def test_the_gradient_is_that_of_central_differences_through_the_programme(optw):
    start, told = network(**optw), batch(1)
    value, found = step_gradient(start, told)
    assert value == pytest.approx(objective(told, start(told))[0])
    for layer in ("inner", "outer"):
        weights = getattr(start, layer)
        for place in np.ndindex(weights.shape):
            ends = []
            for sign in (1, -1):
                moved = weights.copy()
                moved[place] += sign * 1e-6
                ends.append(objective(told, start._replace(**{layer: moved})(told))[0])
            slope = (ends[0] - ends[1]) / 2e-6
            assert getattr(found, layer)[place] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_the_objective_does_not_see_the_size_of_the_weights():
    told, weights = batch(2), np.random.default_rng(0).random(16) + 0.1
    value, slope = objective(told, weights)
    assert objective(told, 3 * weights)[0] == pytest.approx(value)
    assert slope @ weights == pytest.approx(0, abs=1e-12)
    # Two tokens by hand: A l = (3, 4), A d = (1, 2), w = (1, 1/2): (3 + 2) / sqrt(1 + 1).
    two = Evidence(
        length=np.array([2]),
        advantage=np.array([1.0]),
        distance=np.array([1.0, 2.0]),
        learning_value=np.array([3.0, 4.0]),
    )
    assert objective(two, np.array([1.0, 0.5]))[0] == pytest.approx(5 / np.sqrt(2))
    none = Evidence(**{**two.given(), "advantage": np.zeros(1)})
    assert objective(none, np.ones(2))[0] == 0


def test_untrained_it_is_plain_optw():
    start, _ = fit([batch(0)], steps=1, rate=1e-9)
    np.testing.assert_allclose(start(batch(5)), Optw()(batch(5)), atol=1e-7)


def test_it_learns_where_the_value_lies_and_holds_on_other_batches():
    trained, course = fit([batch(seed) for seed in range(4)], steps=30, rate=0.2)
    assert course[-1] > course[0]
    others = [batch(seed) for seed in range(100, 130)]
    ours, plain, even = (
        np.mean([objective(told, weigh(told))[0] for told in others])
        for weigh in (trained, Optw(), lambda told: np.ones(16))
    )
    assert ours > max(plain, even)


def test_it_is_a_rule_like_others_masks_included():
    rule = by_weight(network(), needs=NEEDS, source="own", budget="rollout", grade="own")
    told, mask = batch(3), np.arange(16) % 5 != 0
    weights = weights_of(rule, Evidence(**told.given(), mask=mask))
    assert (weights[~mask] == 0).all()
    owner = np.repeat(np.arange(4), told.length)
    for rollout in (0, 2, 3):
        assert weights[mask & (owner == rollout)].mean() == pytest.approx(1)


def test_columns_are_what_they_are_called():
    told = batch(4)
    found = columns(told)
    np.testing.assert_array_equal(found[:, 0], -told.logp)
    np.testing.assert_allclose(found[:5, 3], [0.1, 0.3, 0.5, 0.7, 0.9])
    assert found[:5, 4].tolist() == [1] * 5
    np.testing.assert_array_equal(columns(told, ("side", "entropy")), found[:, [4, 1]])
    with pytest.raises(SchemaError, match="`features`"):
        columns(told, ("length",))


def test_a_network_that_does_not_see_the_outcome_treats_both_sides_alike():
    asked = {"steps": 5, "features": ("entropy", "place")}
    trained, _ = fit([batch(0), batch(1)], **asked)
    again, _ = fit([batch(0), batch(1)], **asked)
    np.testing.assert_array_equal(again.inner, trained.inner)
    told = batch(9)
    turned = Evidence(**{**told.given(), "advantage": -told.advantage})
    np.testing.assert_array_equal(trained(told), trained(turned))


def test_nothing_to_learn_from_is_refused():
    flat = Evidence(**{**batch(0).given(), "advantage": np.zeros(4)})
    with pytest.raises(StatisticsError, match="of 1 none has any"):
        fit([flat])
    with pytest.raises(SchemaError, match="units"):
        fit([batch(0)], units=0)
