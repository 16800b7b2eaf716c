import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import statistics as reference
from tests.stats.planted import STRENGTHS, planted_tokens
from tokensense.errors import SchemaError
from tokensense.stats.character import character, contrast_beside, joint_push
from tokensense.stats.naming import NOT_ESTIMABLE, THRESHOLDS
from tokensense.stats.resampling import Method
from tokensense.stats.shifts import common, contrast


def plain_quantities(tokens):
    """The four quantities from their definitions, loops over families and responses."""
    base = tokens["logp"].sel(condition="base").values.astype(float)
    owner, ids = tokens["rollout"].values, tokens["token_id"].values
    share = np.array([(ids == i).mean() for i in np.unique(ids)])
    gain = 1 - (-base.mean()) / -(share * np.log(share)).sum()
    families = {}
    for family in ("verdict", "placebo-0", "placebo-1", "placebo-2"):
        names = tokens["condition"].values[tokens["family"].values == family]
        z = {
            side: np.mean(
                [tokens["logp"].sel(condition=n).values - base for n in names if n.endswith(side)],
                axis=0,
            )
            for side in ("pos", "neg")
        }
        m, d = (z["pos"] + z["neg"]) / 2, (z["pos"] - z["neg"]) / 2
        slope = np.polynomial.Polynomial.fit(m, d, [1], domain=[-1, 1]).coef[1]
        push = [
            min(abs(a), abs(b)) if a * b > 0 else 0.0
            for a, b in zip(z["pos"], z["neg"], strict=True)
        ]
        families[family] = (np.mean(push), np.mean(abs(d - slope * m)), d)
    verdict = families.pop("verdict")
    ratios = [
        math.log(verdict[i] / np.mean([found[i] for found in families.values()])) for i in (0, 1)
    ]
    summed = np.array([verdict[2][owner == r].sum() for r in np.unique(owner)])
    first = np.unique(owner, return_index=True)[1]
    auroc = reference.within_problem_auroc(
        summed, *(tokens[n].values[first] for n in ("reward", "problem", "generator"))
    )[0]
    return [gain, *ratios, auroc]


@pytest.mark.parametrize("kind", ["mixed", "placebo"])
def test_quantities_agree_with_plain_loops(kind):
    tokens = planted_tokens(kind, seed=3, problems=10, group=4)
    found = character(tokens, resamples=100)
    np.testing.assert_allclose(found["estimate"], plain_quantities(tokens), rtol=1e-5)
    assert found["n_clusters"].values.tolist()[:3] == [10, 10, 10]
    assert found.attrs["n_rollouts"] == 40


@pytest.mark.parametrize("kind", STRENGTHS)
def test_sixty_problems_are_enough_for_every_kind(kind):
    found = character(planted_tokens(kind, seed=11), resamples=200)
    assert found.attrs["word"] == kind
    assert json.loads(found.attrs["thresholds"])["auroc"] == THRESHOLDS.auroc
    assert found.attrs["thresholds_digest"] == THRESHOLDS.digest
    assert found["threshold"].sel(quantity="auroc") == THRESHOLDS.auroc


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRENGTHS)
def test_nineteen_of_twenty_studies_are_named_right(kind):
    words = [
        character(planted_tokens(kind, seed=100 + seed), resamples=200).attrs["word"]
        for seed in range(20)
    ]
    assert words.count(kind) >= 19, words


def test_a_shuffled_store_of_a_mixed_policy_is_shuffled_too():
    tokens = planted_tokens("mixed", seed=5)
    first = np.unique(tokens["rollout"].values, return_index=True)[1]
    reward = np.random.default_rng(0).permutation(tokens["reward"].values[first])
    moved = tokens.assign_coords(reward=("token", reward[tokens["rollout"].values]))
    assert character(moved, resamples=200).attrs["word"] == "shuffled"


def test_a_word_that_is_only_learnt_better_than_its_opposite_is_no_contrast():
    tokens = planted_tokens("style", seed=2, problems=25)
    base = tokens["logp"].sel(condition="base").values
    rows = (tokens["family"].values == "verdict") & (tokens["level"].values == "pos")
    tokens["logp"].values[rows] = base + 1.3 * (tokens["logp"].values[rows] - base)
    found = character(tokens, resamples=200)
    assert found["estimate"].sel(quantity="contrast_ratio") < 0.3
    assert found.attrs["word"] == "style"


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=20))
def test_the_joint_push_is_what_the_common_part_has_beyond_the_contrast(pairs):
    positive, negative = np.array(pairs).T
    beyond = np.abs(common(positive, negative)) - np.abs(contrast(positive, negative))
    np.testing.assert_allclose(joint_push(positive, negative), np.maximum(beyond, 0), atol=1e-12)
    # Two words of the same effect, one of them stronger, have no contrast beside it.
    np.testing.assert_allclose(contrast_beside(positive, 1.4 * positive), 0.0, atol=1e-12)


def test_names_texts_kinds_and_the_order_of_tokens_and_conditions_do_not_matter():
    tokens = planted_tokens("mixed", seed=4, problems=20, group=4)
    rng = np.random.default_rng(0)
    moved = tokens.isel(
        token=rng.permutation(tokens.sizes["token"]),
        condition=rng.permutation(tokens.sizes["condition"]),
    )
    size = tokens.sizes["token"]
    moved = moved.assign_coords(
        generator=("token", np.full(size, "x")),
        kind=("token", np.full(size, "other")),
        token_id=("token", 7919 - moved["token_id"].values),
    ).drop_attrs()
    one, other = (character(each, resamples=100) for each in (tokens, moved))
    np.testing.assert_allclose(one["estimate"], other["estimate"], rtol=1e-6)
    np.testing.assert_allclose(one["interval"], other["interval"], rtol=1e-4)
    assert one.attrs["word"] == other.attrs["word"]


# What is missing


def without(tokens, probe):
    return tokens.isel(condition=np.flatnonzero(tokens["probe"].values != probe))


def test_without_placebos_nothing_is_said():
    tokens = without(planted_tokens("truthful", problems=20, group=2), "placebo")
    found = character(tokens, resamples=100)
    assert found.attrs["word"] == NOT_ESTIMABLE
    assert found.attrs["statement"].startswith("not estimable: push_ratio: not estimable")
    assert (found["method"].sel(quantity="contrast_ratio")) == Method.NONE_UNDEFINED


def test_neutral_words_are_not_needed():
    tokens = planted_tokens("truthful", problems=20)
    whole, part = (character(t, resamples=100) for t in (tokens, without(tokens, "neutral")))
    np.testing.assert_array_equal(whole["estimate"], part["estimate"])


@pytest.mark.parametrize("reward", [np.nan, 1.0])
def test_without_labels_what_needs_none_is_said_still(reward):
    def unlabeled(kind):
        tokens = planted_tokens(kind, problems=30, group=4)
        return tokens.assign_coords(reward=("token", np.full(tokens.sizes["token"], reward)))

    assert character(unlabeled("style"), resamples=100).attrs["word"] == "style"
    assert character(unlabeled("placebo"), resamples=100).attrs["word"] == "placebo"
    found = character(unlabeled("truthful"), resamples=100)
    assert found.attrs["word"] == NOT_ESTIMABLE
    assert "auroc: not estimable: no value" in found.attrs["statement"]


@pytest.mark.parametrize("problems", [1, 7])
def test_few_problems_are_not_enough(problems):
    found = character(planted_tokens("mixed", problems=problems, group=2), resamples=100)
    assert found.attrs["word"] == NOT_ESTIMABLE
    assert "fewer than 8 problem texts" in found.attrs["statement"]


def test_constant_data_are_stated_not_crashed_on():
    tokens = planted_tokens("placebo", problems=20, group=2)
    tokens["logp"].values[:] = -0.5
    found = character(tokens, resamples=100)
    assert found.attrs["word"] == NOT_ESTIMABLE
    same = tokens.assign_coords(token_id=("token", np.zeros(tokens.sizes["token"], np.int32)))
    assert (
        character(same, resamples=100).attrs["statement"].startswith("not estimable: context_gain")
    )


def test_token_ids_are_needed():
    tokens = planted_tokens("placebo", problems=2, group=2).drop_vars("token_id")
    with pytest.raises(SchemaError, match="needs `token_id`"):
        character(tokens, resamples=100)


def test_a_response_that_one_pair_cannot_use_takes_no_part():
    tokens = planted_tokens("mixed", problems=20, group=2)
    loud = tokens["rollout"].values == 3
    tokens["logp"].values[1:, loud] += 5.0
    tokens["comparable"].values[4, 3] = False
    kept = tokens.isel(token=np.flatnonzero(~loud))
    one, other = (character(each, resamples=100) for each in (tokens, kept))
    np.testing.assert_allclose(one["estimate"], other["estimate"])
    assert one.attrs["n_rollouts"] == 39
