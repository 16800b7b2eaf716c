"""DelTA against its written vectors, plain loops, and what must not change its weights."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.credit.builders import LIBRARIES, evidence
from tests.reference import credit as slow
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.credit.delta import dense, fit, full_head, row_gradient, sigmoid

# methods/delta.md section 2.7.
HIDDEN = [[1, 0, 2], [0.5, -1, 2], [1, 0.2, 2], [-1, 1, 1.5], [0, 2, 1], [0.9, -0.1, 2],
          [-0.5, 1.5, 2], [0.3, 0.3, 0.3]]  # fmt: skip
P = [0.9, 0.2, 0.9, 0.4, 0.1, 0.8, 0.3, 0.5]
ADVANTAGE, LENGTH = [1.154699, -0.577350, -0.577350, 0.0], [2, 3, 2, 1]
LAMBDA = {
    0: [1.014508, 1.158093, 0.991292, 1.092671, 1.168698, 0.977489, 1.123614, 0.8],
    1: [1.017863, 1.176861, 0.989347, 1.107705, 1.182107, 0.971074, 1.140029, 0.8],
    2: [1.014541, 1.159097, 0.990712, 1.091305, 1.169863, 0.975697, 1.122245, 0.8],
}
WEIGHTS = [0.971129, 1.122827, 0.943922, 1.056846, 1.127832, 0.926488, 1.087686, 0.763269]
ABLATIONS = ["delta", "delta_hard", "delta_unnormalized", "delta_within", "delta_random"]


def told(**more):
    vectors = row_gradient(np.array(HIDDEN, float), np.log(P))
    return {
        "length": np.array(LENGTH),
        "advantage": np.array(ADVANTAGE),
        "row_gradient": vectors,
        "key": np.arange(4),
        **more,
    }


def weights(name="delta", library="numpy", found=None, **changed):
    rule = adjusted(CATALOGUE[name], **changed)
    return np.asarray(weights_of(rule, evidence(found or told(), library)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("refinements", LAMBDA)
def test_the_written_vectors(library, refinements):
    found = weights("delta_unnormalized", library, refinements=refinements)
    np.testing.assert_allclose(found, LAMBDA[refinements], atol=6e-7)
    if refinements == 1:
        np.testing.assert_allclose(weights(library=library), WEIGHTS, atol=6e-7)


def test_the_vectors_of_the_file(shared):
    known = json.loads((shared / "methods/vectors/delta.json").read_text())
    vectors = row_gradient(np.array(known["h"]), np.log(known["p"]))
    np.testing.assert_allclose(vectors, known["v"], rtol=1e-12)
    advantage = np.array(known["adv"])
    first, last = (fit(dense(vectors), advantage, refinements=k) for k in (0, 1))
    for found, tail in ((first, "0"), (last, "1")):
        for side, weight in zip("pn", found.weights, strict=True):
            np.testing.assert_allclose(weight @ vectors, known[f"mu_{side}{tail}"], rtol=1e-12)
        assert found.gamma == pytest.approx((known[f"g_p{tail}"], known[f"g_n{tail}"]))
    for found, tail in ((first, "0"), (last, "_final")):
        np.testing.assert_allclose(found.margin, known[f"margin{tail}"], rtol=1e-9)
        np.testing.assert_allclose(found.alpha, known[f"alpha{tail}"], rtol=1e-9)
    per_rollout = advantage[[0, 2, 5, 7]]
    found = told(row_gradient=vectors, advantage=per_rollout)
    np.testing.assert_allclose(weights(found=found), known["lam_bar"], rtol=1e-9)
    np.testing.assert_allclose(weights("delta_unnormalized", found=found), known["lam"], rtol=1e-9)


def test_ablations_by_hand():
    alpha0 = (np.array(LAMBDA[0]) - 0.8) / 0.4
    raw = weights(refinements=0, low=0.0, high=1.0)  # no range map; the token without A gets 0
    np.testing.assert_allclose(raw, alpha0 * 8 / alpha0.sum(), atol=2e-5)
    hard = weights("delta_hard", refinements=0)
    lam = np.where(alpha0 > 0.5, 1.2, 0.8)
    np.testing.assert_allclose(hard, lam * 8 / lam.sum(), rtol=1e-12)
    # With one refinement the lagged temperature is the first; with a margin in hand it is not.
    assert weights(refinements=0).tolist() == weights(refinements=0, refreshed=1).tolist()
    assert np.abs(weights() - weights(refreshed=1)).max() > 1e-3
    within = weights("delta_within", low=0.0, high=1.0)
    vectors, side = told()["row_gradient"], np.repeat([0, 1, 1, 2], LENGTH)
    near = np.zeros(8)
    for own in (0, 1):
        part = vectors[side == own]
        distance = ((part - part.mean(0)) ** 2).sum(1)
        # Both tokens of the right response are equally far from their mean: the floor counts.
        near[side == own] = np.exp(-np.logaddexp(0, distance / max(distance.std(), 1e-4)))
    np.testing.assert_allclose(within, near * 8 / near.sum(), rtol=1e-9)
    drawn = weights("delta_random")
    assert drawn.max() / drawn.min() < 1.5
    assert np.unique(drawn).size == 8


def test_a_fixed_temperature():
    found = fit(dense(told()["row_gradient"]), np.repeat(ADVANTAGE, LENGTH), gamma=3.0)
    np.testing.assert_allclose(found.alpha, 1 / (1 + np.exp(-found.margin / 3.0)), rtol=1e-12)
    assert found.gamma == (3.0, 3.0)


@st.composite
def pools(draw):
    """Vectors, rollouts of both sides, advantages; margins far from what the floors reach."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    length = rng.integers(1, 7, size=draw(st.integers(3, 6)))
    advantage = rng.choice([-1.0, 0.0, 1.0], length.size) * rng.uniform(0.3, 2.0, length.size)
    advantage[:2] = rng.uniform(0.3, 2.0, 2) * [1, -1]
    length[:2] += 2
    vectors = rng.normal(0.3, 1.0, (int(length.sum()), 4))
    return {
        "length": length,
        "advantage": advantage,
        "row_gradient": vectors,
        "key": np.arange(length.size),
    }


every = pytest.mark.parametrize("name", ["delta", "delta_unnormalized", "delta_within"])
some = settings(max_examples=15)


@given(pool=pools(), refinements=st.integers(0, 3), refreshed=st.sampled_from([0, 1]))
@some
def test_loops_over_tokens_give_the_same(pool, refinements, refreshed):
    found = weights(found=pool, refinements=refinements, refreshed=refreshed)
    expected = slow.delta(
        pool["row_gradient"].tolist(),
        np.repeat(pool["advantage"], pool["length"]).tolist(),
        refinements=refinements,
        refreshed=bool(refreshed),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.mean() == pytest.approx(1.0)


@every
@given(pool=pools())
@some
def test_what_leaves_the_weights_as_they_are(name, pool):
    before = weights(name, found=pool)
    vectors = pool["row_gradient"]
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    for changed in (
        {"row_gradient": vectors + np.array([3.0, -1.0, 0.5, 2.0])},
        {"row_gradient": 7.0 * vectors},
        {"row_gradient": vectors @ turned},
        {"advantage": 1e-3 * pool["advantage"]},
        {"advantage": -pool["advantage"]},  # sides swap, alphas stay
    ):
        after = weights(name, found=pool | changed)
        np.testing.assert_allclose(after, before, rtol=1e-7, err_msg=str(changed))


@every
@given(pool=pools())
@some
def test_tokens_in_another_order_within_a_rollout(name, pool):
    order = np.random.default_rng(1).permutation(pool["length"][0])
    index = np.concatenate([order, np.arange(order.size, pool["length"].sum())])
    after = weights(name, found=pool | {"row_gradient": pool["row_gradient"][index]})
    np.testing.assert_allclose(after, weights(name, found=pool)[index], rtol=1e-9)


@given(pool=pools())
@some
def test_margins_are_differences_of_distances(pool):
    vectors, advantage = pool["row_gradient"], np.repeat(pool["advantage"], pool["length"])
    for refinements in (0, 2):
        found = fit(dense(vectors), advantage, refinements=refinements)
        means = [w @ vectors for w in found.weights]
        near, far = (((vectors - mean) ** 2).sum(1) for mean in means)
        np.testing.assert_allclose(
            found.margin, np.where(advantage > 0, far - near, near - far), atol=1e-9
        )
        apart = ((means[0] - means[1]) ** 2).sum()
        if refinements == 0:  # the mean margin of either side is the squared contrast
            for weight in found.weights:
                assert weight @ found.margin == pytest.approx(apart)


@given(pool=pools())
@some
def test_confident_tokens_share_a_weight_a_side(pool):
    # Vectors of zero: all that is left of the margin is the difference of the norms.
    advantage = np.repeat(pool["advantage"], pool["length"])
    vectors = pool["row_gradient"].copy()
    vectors[::2] = 0.0
    assume((vectors[advantage > 0] != 0).any() and (vectors[advantage < 0] != 0).any())
    found = fit(dense(vectors), advantage)
    positive, negative = (float(((w @ vectors) ** 2).sum()) for w in found.weights)
    for side, sign, gamma in zip((advantage > 0, advantage < 0), (1, -1), found.gamma, strict=True):
        own = found.alpha[side & (vectors == 0).all(1)]
        expected = sigmoid(np.array([sign * (negative - positive) / gamma]))
        np.testing.assert_allclose(own, np.repeat(expected, own.size), rtol=1e-9)


def test_the_whole_head_is_the_outer_products():
    rng = np.random.default_rng(2)
    residual, hidden = rng.normal(size=(9, 5)), rng.normal(size=(9, 3))
    outer = (residual[:, :, None] * hidden[:, None, :]).reshape(9, 15)
    advantage = rng.normal(size=9)
    one, other = (
        fit(geometry, advantage, refinements=2)
        for geometry in (full_head(residual, hidden), dense(outer))
    )
    np.testing.assert_allclose(one.alpha, other.alpha, rtol=1e-9)


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_pool_of_one_side_is_uniform(name):
    found = told(advantage=np.array([1.0, 0.5, 0.0, 0.0]))
    if name != "delta_random":
        assert weights(name, found=found).tolist() == [1.0] * 8
    assert fit(dense(found["row_gradient"]), np.ones(8)) is None


def test_the_story_of_shared_and_side_specific_tokens():
    # 20 shared types, 25 that occur on one side, 5 of them in each response (delta.md section 6).
    rng = np.random.default_rng(0)
    types = np.eye(70)
    rows, sides = [], []
    for side in (1.0, -1.0) * 40:
        own = rng.choice(25, 5, replace=False) + (20 if side > 0 else 45)
        rows.append(types[np.concatenate([np.arange(20), own])])
        sides.append(side)
    vectors, advantage = np.concatenate(rows), np.repeat(sides, 25)

    def cosine(alpha):
        means = [
            np.average(vectors[advantage == s], axis=0, weights=alpha[advantage == s])
            for s in (1.0, -1.0)
        ]
        return means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])

    alpha = fit(dense(vectors), advantage).alpha
    before, mapped, raw = (cosine(a) for a in (np.ones_like(alpha), 0.8 + 0.4 * alpha, alpha))
    assert before > mapped > raw
    shared_type = np.tile(np.arange(25) < 20, 80)
    assert alpha[shared_type].mean() == pytest.approx(0.5, abs=0.02)
    assert alpha[~shared_type].mean() > 0.9
