import numpy as np
import pytest

from tests.stats.builders import made_up_tokens
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.polarity import STATISTICS, polarity
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample


def result(tokens, resamples=200):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    plan = Resampling(sample.clusters, resamples, 0)
    return polarity(sample, pairs, terms=terms_of(sample, pairs), plan=plan, attrs={})


def plain(tokens, family):
    """The six statistics of one family, in loops."""
    sides = {
        level: tokens.logp.values[(tokens.family.values == family) & (tokens.level.values == level)]
        .astype(float)
        .mean(axis=0)
        for level in ("pos", "neg")
    }
    d = (sides["pos"] - sides["neg"]) / 2
    owner, reward = tokens.rollout.values, tokens.reward.values
    shares = {"tokens": {1: [], 0: []}, "responses": {1: [], 0: []}}
    for r in range(tokens.sizes["rollout"]):
        own = d[owner == r]
        outcome = int(reward[owner == r][0])
        sign = 1 if outcome else -1
        shares["tokens"][outcome] += [float(x > 0) + 0.5 * (x == 0) for x in sign * own]
        total = sign * own.sum()
        shares["responses"][outcome].append(float(total > 0) + 0.5 * (total == 0))
    found = []
    for unit in ("tokens", "responses"):
        right, wrong = (np.mean(shares[unit][outcome]) for outcome in (1, 0))
        found += [(right + wrong) / 2, right, wrong]
    return np.array(found)


def test_agrees_with_the_plain_loops():
    tokens = made_up_tokens(problems=12, length=(3, 9), scenario="signal", effect=0.03)
    found = result(tokens)
    verdict = plain(tokens, "verdict")
    placebo = np.mean([plain(tokens, f"placebo-{i}") for i in range(3)], axis=0)
    np.testing.assert_allclose(found.estimate.sel(term="verdict"), verdict)
    np.testing.assert_allclose(found.estimate.sel(term="placebo"), placebo)
    np.testing.assert_allclose(found.estimate.sel(term="difference"), verdict - placebo)
    assert found.statistic.values.tolist() == list(STATISTICS)


def test_a_contrast_that_is_always_positive_agrees_half_the_time():
    tokens = made_up_tokens(problems=12, length=(3, 9))
    base = tokens.logp[0].values
    for at in np.flatnonzero(tokens.family.values == "verdict"):
        tokens.logp[at] = base + (0.1 if tokens.level.values[at] == "pos" else -0.1)
    at = result(tokens).estimate.sel(term="verdict").values
    np.testing.assert_array_equal(at, [0.5, 1.0, 0.0, 0.5, 1.0, 0.0])


def test_no_contrast_agrees_half_the_time():
    tokens = made_up_tokens(problems=12, length=(3, 9))
    tokens.logp[:] = tokens.logp[0].values
    found = result(tokens)
    assert (found.estimate.sel(term="verdict") == 0.5).all()
    assert (found.method == Method.NONE_NO_VARIATION).all()


@pytest.mark.parametrize("reward", [0.0, np.nan])
def test_an_outcome_that_is_missing_leaves_no_agreement(reward):
    tokens = made_up_tokens(problems=12, length=(3, 9))
    tokens = tokens.assign_coords(reward=("token", np.full(tokens.sizes["token"], reward)))
    found = result(tokens)
    at = found.sel(term="verdict")
    assert np.isnan(at.estimate.sel(statistic="agreement_of_tokens"))
    assert np.isnan(at.estimate.sel(statistic="right_tokens_positive"))
    assert at.method.sel(statistic="agreement_of_tokens") in (
        Method.NONE_UNDEFINED,
        Method.NONE_FEW_PROBLEMS,
    )
    assert np.isfinite(at.estimate.sel(statistic="wrong_tokens_negative")) == (reward == 0)
