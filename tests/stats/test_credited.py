import json

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

from tests.figures.builders import flat_tokens
from tokensense.errors import StatisticsError
from tokensense.stats.credited import credited

ROLLOUTS = 24


def made(*, seed: int = 0):
    """Tokens, and credit of four rules: even, by surprisal, on one kind, against the advantage."""
    tokens = flat_tokens(rollouts=ROLLOUTS, mean_length=12, seed=seed)
    tokens["entropy"] = -tokens["logp"]
    owner, kind = tokens["rollout"].values, tokens["kind"].values
    surprisal = -tokens["logp"].values[0].astype(np.float64)
    advantage = np.resize([1.0, -0.5, 0.0], ROLLOUTS)[owner]
    rules = {
        "even": advantage,
        "rare": advantage * surprisal,
        "digits": advantage * (kind == "digit"),
        "against": -advantage,
    }
    credit = xr.Dataset(
        {
            "credit": (("rule", "token"), np.stack(list(rules.values()))),
            "advantage": ("token", advantage),
        },
        coords={"rule": list(rules)},
    )
    return tokens, credit


@pytest.fixture(scope="module")
def found():
    return credited(*made(), resamples=100)


def value(result: xr.Dataset, **place) -> float:
    return float(result["estimate"].sel(place))


def test_even_credit_is_uniform_and_its_opposite_turns_the_update_around(found):
    for rule, degrees in (("even", 0.0), ("against", 180.0)):
        assert value(found["rules"], statistic="rotation", rule=rule) == pytest.approx(degrees)
        assert value(found["rules"], statistic="effective", rule=rule) == pytest.approx(1.0)
        assert value(found["rules"], statistic="gini", rule=rule) == pytest.approx(0.0)


def test_rotation_is_the_angle_between_updates_of_orthogonal_gradients(found):
    tokens, credit = made()
    logp = tokens["logp"].values[0].astype(np.float64)
    square = 1 - 2 * np.exp(logp) + tokens["p_square_sum"].values[0].astype(np.float64)
    for rule in ("rare", "digits"):
        one, other = credit["credit"].sel(rule=rule).values, credit["advantage"].values
        cosine = (one * other * square).sum() / np.sqrt(
            (one**2 * square).sum() * (other**2 * square).sum()
        )
        assert value(found["rules"], statistic="rotation", rule=rule) == pytest.approx(
            np.degrees(np.arccos(cosine)), rel=1e-6
        )


def test_mass_by_kind_is_the_share_of_credit_over_the_share_of_tokens(found):
    tokens, credit = made()
    own = credit["advantage"].values != 0
    kind = tokens["kind"].values[own]
    size = np.abs(credit["credit"].sel(rule="rare").values[own])
    for name in ("digit", "format"):
        expected = np.log(size[kind == name].sum() / size.sum() / np.mean(kind == name))
        assert value(found["rules_by_kind"], rule="rare", kind=name) == pytest.approx(expected)
        assert int(found["rules_by_kind"]["n_tokens"].sel(kind=name)) == (kind == name).sum()
    assert np.isnan(value(found["rules_by_kind"], rule="digits", kind="format"))


def test_agreement_is_spearmans_within_responses_averaged(found):
    tokens, credit = made()
    owner, surprisal = tokens["rollout"].values, -tokens["logp"].values[0].astype(np.float64)
    position = np.concatenate([np.arange(n) for n in np.bincount(owner)])
    signed = credit["credit"].sel(rule="rare").values * np.sign(credit["advantage"].values)
    kept = [r for r in range(ROLLOUTS) if r % 3 != 2]  # those with an advantage
    expected = np.mean([spearmanr(signed[owner == r], position[owner == r])[0] for r in kept])
    square = found["rule_agreement"]
    assert value(square, score="rare", other="position") == pytest.approx(expected)
    assert value(square, score="position", other="rare") == pytest.approx(expected)
    assert value(square, score="rare", other="surprisal") == pytest.approx(1.0)
    assert surprisal.size == owner.size
    assert np.isnan(value(square, score="even", other="surprisal"))  # no ranks


def test_verdict_and_placebo_contrasts_stand_beside_the_rules(found):
    square = found["rule_agreement"]
    others = square["score"].values[~square["is_rule"].values].tolist()
    assert others == [
        *("surprisal", "entropy", "position", "verdict contrast", "placebo contrast")
    ]  # fmt: skip


def test_a_store_without_verdicts_has_plain_scores_only():
    tokens, credit = made()
    square = credited(tokens.isel(condition=[0]), credit, resamples=100)["rule_agreement"]
    others = square["score"].values[~square["is_rule"].values].tolist()
    assert others == ["surprisal", "entropy", "position"]


def test_only_responses_with_an_advantage_count(found):
    assert found["rules"]["n_rollouts"].values.tolist() == [16] * 4
    (statement,) = json.loads(found["rules"].attrs["statements"])
    assert statement.startswith("16 of 24 responses have an advantage")


def test_the_order_of_tokens_does_not_matter(found):
    tokens, credit = made()
    order = np.argsort(-tokens["rollout"].values, kind="stable")
    again = credited(tokens.isel(token=order), credit.isel(token=order), resamples=100)
    for name, result in found.items():
        np.testing.assert_allclose(again[name]["estimate"], result["estimate"], atol=1e-12)


def test_a_correlation_with_length_is_of_ranks_over_responses():
    tokens, credit = made()
    length = np.bincount(tokens["rollout"].values)
    credit["credit"][0] = credit["credit"][0] * length[tokens["rollout"].values]
    result = credited(tokens, credit, resamples=100)["rules"]
    assert value(result, statistic="with_length", rule="even") == pytest.approx(1.0)
    assert np.isnan(value(result, statistic="with_length", rule="against"))


def test_without_any_advantage_there_is_nothing_to_say():
    tokens, credit = made()
    credit["advantage"] = credit["advantage"] * 0
    with pytest.raises(StatisticsError, match="all are 0 or undecided"):
        credited(tokens, credit)


def test_reconstructions_are_named_in_every_caption():
    tokens, credit = made()
    grades = ["inferred"] + ["own"] * (credit.sizes["rule"] - 1)
    graded = credit.assign_coords(grade=("rule", grades))
    for result in credited(tokens, graded, resamples=100).values():
        name = str(credit["rule"].values[0])
        _, said = json.loads(result.attrs["statements"])
        assert said == f"reconstructions, part of the formula is a guess: {name}"
