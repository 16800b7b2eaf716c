import json
import math
import re

import numpy as np
import pytest

from tests.reference import statistics as reference
from tests.stats.planted import STRENGTHS, planted_tokens
from tokensense.errors import SchemaError
from tokensense.stats.character import (
    MEANINGS,
    NOT_ESTIMABLE,
    QUANTITIES,
    THRESHOLDS,
    WORDS,
    Reading,
    Thresholds,
    character,
    decide,
)
from tokensense.stats.resampling import Method


def readings(gain=0.8, push=0.0, parting=0.0, auroc=0.5, *, half=0.05):
    """Readings of four estimates, with equally wide intervals; or as they are given."""
    given = dict(zip(QUANTITIES, (gain, push, parting, auroc), strict=True))
    return {
        name: value
        if isinstance(value, Reading)
        else Reading(value, value - half, value + half, "")
        for name, value in given.items()
    }


MISSING = Reading(math.nan, math.nan, math.nan, "not estimable: no value")


# The decision


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (readings(0.1, push=2.0, parting=2.0, auroc=0.9), "random"),
        (readings(push=2.0, parting=1.0, auroc=0.75), "mixed"),
        (readings(push=2.0, parting=0.0, auroc=0.75), "mixed"),
        (readings(push=0.2, parting=1.5, auroc=0.75), "truthful"),
        (readings(push=2.0, parting=0.0), "style"),
        (readings(push=-0.3, parting=-0.4), "placebo"),
        (readings(push=0.1, parting=1.0), "shuffled"),
        (readings(push=2.0, parting=1.0, auroc=0.57), "shuffled"),
        (readings(push=2.0, parting=0.0, auroc=MISSING), "style"),
        (readings(push=0.0, parting=0.0, auroc=MISSING), "placebo"),
        (readings(0.0, push=MISSING, parting=MISSING, auroc=MISSING), "random"),
    ],
)
def test_each_combination_has_its_word(found, word):
    said = decide(found)
    assert said.word == word
    assert said.statement.startswith(MEANINGS[word])
    assert "context_gain" in said.statement


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (readings(gain=MISSING), "context_gain: not estimable: no value"),
        (readings(push=MISSING), "common_ratio: not estimable: no value"),
        (readings(parting=MISSING), "contrast_ratio: not estimable: no value"),
        (readings(parting=1.0, auroc=MISSING), "auroc: not estimable: no value"),
        (readings(parting=1.0, auroc=0.2), "the contrast is turned around"),
        (readings(parting=1.0, auroc=0.59, half=0.01), "the contrast tells too little to name it"),
        (
            readings(parting=1.0, auroc=Reading(0.5, 0.3, 0.7, "")),
            r"auroc: the interval 0\.50 \[0\.30, 0\.70\] is wider",
        ),
        (readings(half=0.12), r"context_gain: the interval .* is wider than \+-0\.1"),
        (readings(push=Reading(0.0, -1.0, 1.0, "")), "common_ratio: the interval"),
    ],
)
def test_what_cannot_be_told_is_said_with_the_reason(found, reason):
    said = decide(found)
    assert said.word == NOT_ESTIMABLE
    assert re.search(reason, said.statement)


def test_borders_belong_above():
    at = THRESHOLDS
    border = readings(at.context_gain, push=at.common_ratio, parting=at.contrast_ratio)
    assert decide(border).word == "shuffled"
    below = readings(at.context_gain, push=at.common_ratio, parting=at.contrast_ratio - 1e-9)
    assert decide(below).word == "style"


def test_an_auroc_whose_interval_reaches_chance_does_not_tell():
    wide = Reading(0.62, 0.5, 0.74, "")
    assert decide(readings(parting=1.0, auroc=wide)).word == "shuffled"


def test_thresholds_are_frozen_and_have_a_digest_of_their_own():
    with pytest.raises(AttributeError):
        THRESHOLDS.auroc = 0.5
    assert THRESHOLDS.digest == Thresholds().digest
    assert Thresholds(auroc=0.61).digest != THRESHOLDS.digest
    assert set(MEANINGS) == set(WORDS)


# The quantities


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
        slope = (m @ d) / (m @ m)
        families[family] = ((m**2).mean(), ((d - slope * m) ** 2).mean(), d)
    verdict = families.pop("verdict")
    ratios = [
        0.5 * math.log(verdict[i] / np.mean([found[i] for found in families.values()]))
        for i in (0, 1)
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
    assert found.attrs["statement"].startswith("not estimable: common_ratio: not estimable")
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
