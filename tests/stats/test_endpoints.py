import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from tests.reference import statistics as reference
from tests.stats.builders import made_up_tokens
from tokensense.stats.endpoints import informative, verdict_word
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample


def described(tokens, resamples=400):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    plan = Resampling(sample.clusters, resamples, 0)
    return informative(sample, pairs, terms=terms_of(sample, pairs), plan=plan, attrs={})


def per_rollout(tokens):
    """Summed mean contrast of each family, reward, problem, generator, length; straight loops."""
    base = tokens.logp.values[0].astype(float)
    owner = tokens.rollout.values
    summed = {}
    for family in np.unique(tokens.family.values[1:17]):
        d = []
        for frame in ("f0", "f1"):
            z = [
                tokens.logp.sel(condition=f"{family}.{frame}.{side}").values - base
                for side in ("pos", "neg")
            ]
            d.append((z[0] - z[1]) / 2)
        mean = np.mean(d, axis=0)
        summed[family] = np.array([mean[owner == r].sum() for r in np.unique(owner)])
    first = np.unique(owner, return_index=True)[1]
    rest = {n: tokens[n].values[first] for n in ("reward", "problem", "generator")}
    return summed, rest, tokens.length.values.astype(float)


def test_agrees_with_the_slow_version():
    tokens = made_up_tokens(problems=25, length=(3, 9), scenario="signal", effect=0.02)
    triple, controls = described(tokens)
    summed, rest, length = per_rollout(tokens)
    data = (rest["reward"], rest["problem"], rest["generator"])
    for measure, divisor in (("sum", 1.0), ("mean", length)):
        values = {
            family: reference.within_problem_auroc(total / divisor, *data)
            for family, total in summed.items()
        }
        for side, orientation in enumerate(("balanced", "plain")):
            verdict = values["verdict"][side]
            placebo = np.mean([values[f"placebo-{i}"][side] for i in range(3)])
            at = triple.estimate.sel(statistic=f"auroc_{measure}_{orientation}")
            np.testing.assert_allclose(at, [verdict, placebo, verdict - placebo], atol=1e-12)
    for side, orientation in enumerate(("balanced", "plain")):
        at = controls.estimate.sel(statistic=f"auroc_{orientation}")
        expected = reference.within_problem_auroc(length, *data)[side]
        assert at.sel(score="length").item() == pytest.approx(expected, abs=1e-12)
        expected = reference.within_problem_auroc(summed["placebo-1"], *data)[side]
        assert at.sel(score="placebo-1").item() == pytest.approx(expected, abs=1e-12)


def test_a_contrast_that_only_knows_the_generator_gets_exactly_one_half():
    tokens = made_up_tokens(problems=60, length=(8, 8))
    base = tokens.logp.values[0]
    base[:] = -1.0
    # Powers of two: the same contrast on every token of a generator, and no rounding anywhere.
    style = np.array([0.125, 0.25, 0.5, 1.0])[
        np.searchsorted(list("abcd"), tokens.generator.values)
    ]
    for index, level in enumerate(tokens.level.values):
        if tokens.family.values[index] == "verdict":
            tokens.logp.values[index] = base + (style if level == "pos" else -style)
    triple, controls = described(tokens)
    at = triple.estimate.sel(term="verdict")
    assert at.sel(statistic="auroc_sum_balanced").item() == 0.5
    assert at.sel(statistic="auroc_mean_balanced").item() == 0.5
    assert at.sel(statistic="auroc_sum_plain").item() > 0.6
    assert controls.estimate.sel(statistic="auroc_plain", score="generator").item() > 0.6
    # All lengths are equal, so length ties everywhere.
    assert (controls.estimate.sel(score="length") == 0.5).all()


@pytest.mark.parametrize(
    ("scenario", "effect", "word"),
    [("signal", 0.03, "informative"), ("style", 0.1, "equivalent")],
)
def test_words_of_planted_effects(scenario, effect, word):
    tokens = made_up_tokens(
        problems=700, length=(4, 8), frames=1, families=3, scenario=scenario, effect=effect
    )
    triple, controls = described(tokens)
    assert triple.attrs["n_mixed_problems"] > 500
    assert triple.attrs["word"] == word
    first = triple.sel(statistic="auroc_sum_balanced", term="verdict")
    if scenario == "style":
        # What the plain AUROC takes for answer signal.
        assert triple.estimate.sel(statistic="auroc_sum_plain", term="verdict") > 0.6
        assert 0.44 < first.interval_90[0] < 0.5 < first.interval_90[1] < 0.56
    else:
        assert first.interval_90[0] > 0.56
    plain = controls.sel(statistic="auroc_plain", score="generator")
    assert plain.estimate.item() > 0.55


def test_the_other_way_round_is_reversed():
    tokens = made_up_tokens(
        problems=400, length=(4, 8), frames=1, families=1, scenario="signal", effect=-0.1
    )
    triple, _ = described(tokens)
    assert triple.attrs["word"] == "reversed"


@pytest.mark.parametrize(
    ("low", "high", "mixed", "word"),
    [
        (0.57, 0.60, 300, "informative"),
        (0.56, 0.60, 300, "inconclusive"),
        (0.45, 0.55, 300, "equivalent"),
        (0.44, 0.55, 300, "inconclusive"),
        (0.45, 0.56, 300, "inconclusive"),
        (0.30, 0.43, 300, "reversed"),
        (0.30, 0.44, 300, "inconclusive"),
        (0.57, 0.60, 299, "not_estimable"),
        (math.nan, math.nan, 300, "not_estimable"),
    ],
)
def test_word_of_an_interval(low, high, mixed, word):
    assert verdict_word(low, high, mixed=mixed) == word


def test_few_mixed_problems_give_numbers_and_no_word():
    tokens = made_up_tokens(problems=40, length=(3, 6), scenario="signal")
    triple, _ = described(tokens)
    assert triple.attrs["word"] == "not_estimable"
    assert "300 needed" in triple.attrs["statement"]
    assert np.isfinite(triple.estimate).all()


def test_counts_at_each_level():
    tokens = made_up_tokens(problems=3, group=2, length=(2, 2))
    reward = np.repeat([1.0, 0.0, 1.0, 1.0, np.nan, 0.0], 2)
    generator = np.repeat(["a", "b", "a", "a", "b", "a"], 2)
    tokens = tokens.assign_coords(reward=("token", reward), generator=("token", generator))
    tokens.comparable.values[1, 5] = False
    triple, _ = described(tokens)
    expected = {
        "n_mixed_problems": 1,
        "n_problems": 3,
        "n_clusters": 1,
        "n_rollouts": 2,
        "n_rollouts_left_out": 1,
        "n_rollouts_without_reward": 1,
        "n_tokens": 4,
        "n_contests": 1,
        "n_contests_one_orientation": 1,
        "n_generators": 2,
    }
    assert {key: triple.attrs[key] for key in expected} == expected
    at = triple.sel(term="verdict")
    assert at.method.sel(statistic="auroc_sum_balanced") == Method.NONE_UNDEFINED
    assert at.method.sel(statistic="auroc_sum_plain") == Method.NONE_FEW_PROBLEMS


def test_no_mixed_problem_gives_nothing():
    tokens = made_up_tokens(problems=5)
    ones = np.ones(tokens.sizes["token"])
    assert described(tokens.assign_coords(reward=("token", ones))) is None


def test_detectable_difference_and_power_follow_from_the_error():
    tokens = made_up_tokens(problems=60, length=(3, 6))
    triple, _ = described(tokens)
    error = triple.error.sel(statistic="auroc_sum_balanced", term="verdict").item()
    assert triple.attrs["detectable_difference"] == pytest.approx(2.8016 * error, rel=1e-4)
    # the pilot's numbers: error .020 gives .056 and power .82 at a margin of .06
    assert pytest.approx(0.056, abs=5e-4) == (norm.ppf(0.975) + norm.ppf(0.8)) * 0.020
    assert 2 * norm.cdf(0.06 / 0.020 + norm.ppf(0.05)) - 1 == pytest.approx(0.82, abs=5e-3)
    expected = max(0.0, 2 * norm.cdf(0.06 / error + norm.ppf(0.05)) - 1)
    assert triple.attrs["equivalence_power"] == pytest.approx(expected)


def test_a_perfect_score_is_informative_although_nothing_varies():
    tokens = made_up_tokens(problems=400, length=(2, 3), frames=1, families=1)
    base = tokens.logp.values[0]
    sign = 2 * tokens.reward.values - 1
    for index, level in enumerate(tokens.level.values):
        if tokens.family.values[index] == "verdict":
            tokens.logp.values[index] = base + (sign if level == "pos" else -sign)
    triple, _ = described(tokens)
    at = triple.sel(statistic="auroc_sum_balanced", term="verdict")
    assert at.estimate.item() == 1
    assert at.method.item() == Method.NONE_NO_VARIATION
    assert triple.attrs["word"] == "informative"


def test_one_generator_is_balanced_by_itself():
    tokens = made_up_tokens(problems=60, length=(3, 6), generators=("only",), scenario="signal")
    triple, controls = described(tokens)
    at = triple.estimate.sel(term="verdict")
    assert at.sel(statistic="auroc_sum_balanced") == at.sel(statistic="auroc_sum_plain")
    assert (controls.estimate.sel(score="generator") <= 1).all()


def test_placebo_missing_leaves_the_verdict():
    tokens = made_up_tokens(problems=60, length=(3, 6)).isel(condition=slice(0, 5))
    triple, controls = described(tokens)
    assert np.isfinite(triple.estimate.sel(term="verdict")).all()
    assert np.isnan(triple.estimate.sel(term="placebo")).all()
    assert controls.score.values.tolist() == ["generator", "length"]


def test_attributes_can_be_stored():
    triple, _ = described(made_up_tokens(problems=30, length=(3, 6)))
    json.dumps({key: value for key, value in triple.attrs.items() if value == value})
    assert all(isinstance(v, (str, int, float)) for v in triple.attrs.values())


@pytest.mark.slow
def test_coverage_of_the_auroc_and_size_of_the_equivalence_test():
    """No signal, four generators of unequal skill: 95 % intervals cover .5, the word is honest."""
    covered = wrong = 0
    studies = 200
    for seed in range(studies):
        tokens = made_up_tokens(
            seed=seed, problems=100, length=(1, 3), frames=1, families=1, scenario="style"
        )
        triple, _ = described(tokens, resamples=500)
        at = triple.sel(statistic="auroc_sum_balanced", term="verdict")
        low, high = at.interval.values
        covered += low <= 0.5 <= high
        wrong += not at.interval_90.values[0] <= 0.5 <= at.interval_90.values[1]
    assert covered / studies >= 0.90  # .95 less three standard errors of .015
    assert wrong / studies <= 0.17  # .10 and three of .021
