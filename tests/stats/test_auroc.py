import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import statistics as reference
from tokensense.stats import auroc as module


def auroc(score, reward, problem, generator):
    score, reward = np.asarray(score, float), np.asarray(reward, float)
    problem, generator = np.asarray(problem, dtype=np.int64), np.asarray(generator)
    met = module.contests(reward, problem)
    faced = module.orientations(met, generator)
    sums = module.contest_sums(
        score[:, None], problem, met=met, faced=faced, clusters=int(problem.max()) + 1
    )
    return module.auroc(sums.sum(axis=0, keepdims=True), faced)[0, 0]


def study(seed, problems=30, group=4, ties=True):
    rng = np.random.default_rng(seed)
    n = problems * group
    score = rng.normal(size=n).round(0 if ties else 9)
    return (
        score,
        (rng.random(n) < 0.5).astype(float),
        rng.permutation(np.repeat(np.arange(problems), group)),
        rng.choice(["a", "b", "c"], n),
    )


def test_one_problem_by_hand():
    # right 3 and 1, wrong 2 and 1: 3>2, 3>1, 1<2, 1=1 -> (1 + 1 + 0 + .5) / 4
    balanced, plain = auroc([3, 1, 2, 1], [1, 1, 0, 0], [0, 0, 0, 0], ["a"] * 4)
    assert (balanced, plain) == (0.625, 0.625)


def test_every_mixed_problem_counts_once():
    # problem 0: four contests, all won; problem 1: one contest, lost; problem 2: not mixed
    score = [5, 5, 1, 1, 0, 9, 7]
    reward = [1, 1, 0, 0, 1, 0, 1]
    problem = [0, 0, 0, 0, 1, 1, 2]
    assert auroc(score, reward, problem, ["a"] * 7).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_the_slow_version(seed):
    data = study(seed)
    np.testing.assert_allclose(auroc(*data), reference.within_problem_auroc(*data), rtol=1e-12)


@given(st.integers(0, 10_000), st.permutations(["p", "q", "r"]))
@settings(max_examples=50, deadline=None)
def test_a_score_that_knows_the_generator_alone_gets_exactly_one_half(seed, order):
    _, reward, problem, generator = study(seed)
    worth = dict(zip(("a", "b", "c"), (order.index(x) for x in ("p", "q", "r")), strict=True))
    balanced, _ = auroc([worth[g] for g in generator], reward, problem, generator)
    assert balanced == 0.5  # to the last bit


def test_generators_of_unequal_skill_fool_the_plain_auroc_only():
    rng = np.random.default_rng(0)
    problem = np.repeat(np.arange(300), 4)
    writer = np.tile(np.arange(4), 300)
    reward = (rng.random(1200) < np.array([0.2, 0.4, 0.4, 0.6])[writer]).astype(float)
    balanced, plain = auroc(writer, reward, problem, writer.astype(str))
    assert balanced == 0.5
    assert plain > 0.65


def test_a_pair_of_generators_seen_in_one_orientation_drops_out():
    # a beats b twice and b never a: nothing to balance; c against c is won.
    score = [2, 1, 2, 1, 5, 4]
    reward = [1, 0, 1, 0, 1, 0]
    problem = [0, 0, 1, 1, 2, 2]
    balanced, plain = auroc(score, reward, problem, ["a", "b", "a", "b", "c", "c"])
    assert (balanced, plain) == (1.0, 1.0)
    balanced, plain = auroc(score[:4], reward[:4], problem[:4], ["a", "b", "a", "b"])
    assert math.isnan(balanced)
    assert plain == 1.0


def test_weights_of_generator_pairs():
    # a over b: 3 contests won; b over a: 1 lost -> middle .5, weight 4*3*1/4 = 3.
    # c against c: 1 won, weight 1. Balanced (3 * .5 + 1) / 4; plain 4/5.
    score = [2, 1, 2, 1, 2, 1, 2, 1, 2, 1]
    reward = [1, 0, 1, 0, 1, 0, 0, 1, 1, 0]
    problem = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    generator = ["a", "b", "a", "b", "a", "b", "a", "b", "c", "c"]
    balanced, plain = auroc(score, reward, problem, generator)
    assert balanced == pytest.approx(2.5 / 4)
    assert plain == pytest.approx(4 / 5)


def test_no_mixed_problem_has_no_value():
    met = module.contests(np.array([1.0, 1.0, 0.0, np.nan]), np.array([0, 0, 1, 1]))
    assert met.weight.size == 0
    faced = module.orientations(met, np.array(["a"] * 4))
    assert faced.total == 0


def test_undecided_rewards_take_no_part():
    met = module.contests(np.array([1.0, np.nan, 0.0, 0.5]), np.array([0, 0, 0, 0]))
    assert (met.right.tolist(), met.wrong.tolist(), met.weight.tolist()) == ([0], [2], [1.0])


def test_a_missing_score_is_a_tie():
    met = module.contests(np.array([1.0, 0.0, 0.0]), np.array([0, 0, 0]))
    assert module.kernel(np.array([np.nan, 1.0, 2.0]), met).tolist() == [0.5, 0.5]
    assert module.kernel(np.array([3.0, np.nan, 2.0]), met).tolist() == [0.5, 1.0]


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_order_is_irrelevant_and_the_sign_mirrors(seed):
    score, reward, problem, generator = study(seed)
    order = np.random.default_rng(seed + 1).permutation(score.size)
    plain = auroc(score, reward, problem, generator)
    moved = auroc(score[order], reward[order], problem[order], generator[order])
    np.testing.assert_allclose(moved, plain, rtol=1e-12)
    np.testing.assert_allclose(auroc(-score, reward, problem, generator), 1 - plain, rtol=1e-9)
    # any rising function of the score gives the same
    np.testing.assert_array_equal(auroc(np.exp(score), reward, problem, generator), plain)


def test_accuracy_of_a_generator_leaves_out_the_own_problem():
    generator = np.array(["a", "a", "a", "b", "b"])
    reward = np.array([1.0, 0.0, 1.0, 1.0, np.nan])
    cluster = np.array([0, 0, 1, 0, 1])
    found = module.generator_accuracy(generator, reward, cluster)
    # a on problem 0 is judged by problem 1 (1/1), on problem 1 by problem 0 (1/2);
    # b on problem 0 has no judged response elsewhere, on problem 1 it has one, right.
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.5, np.nan, 1.0])
