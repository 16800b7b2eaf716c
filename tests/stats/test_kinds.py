import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import statistics as reference
from tests.stats.builders import made_up_tokens
from tokensense.stats.kinds import MEASURES, match, shift_by_kind
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample
from tokensense.stats.shifts import contrast, sensitivity


def described(tokens, resamples=200):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    plan = Resampling(sample.clusters, resamples, 0)
    return shift_by_kind(sample, pairs, terms=terms_of(sample, pairs), plan=plan, attrs={})


def test_a_token_is_set_against_all_within_the_caliper_of_its_trace():
    position = np.array([0.0, 0.05, 0.2, -0.1, 0.0, 5.0, 5.0])
    inside = np.array([True, False, False, False, True, False, True])
    found = match(position, inside, np.array([4, 3]), caliper=0.1)
    # token 0: partners 1 and 3 (border included), not 2; token 4: none in its trace; token 6: 5
    assert found.matched.tolist() == [True, False, False, False, False, False, True]
    assert found.weight.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 1.0, 0.0]


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.5, 10.0]))
@settings(max_examples=40, deadline=None)
def test_matching_agrees_with_the_slow_version(seed, caliper):
    rng = np.random.default_rng(seed)
    length = rng.integers(0, 9, 5)
    n = int(length.sum())
    position, inside = rng.normal(size=n).round(1), rng.random(n) < 0.4
    rollout = np.repeat(np.arange(5), length)
    # A hair more: .3 - .2 is not .1 in binary, and the two versions round differently.
    matched, weight = reference.match(position, inside, rollout, caliper + 1e-9)
    found = match(position, inside, length, caliper=caliper + 1e-9)
    assert found.matched.tolist() == matched
    np.testing.assert_allclose(found.weight, weight, atol=1e-12)
    assert found.weight.sum() == pytest.approx(found.matched.sum())


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_matching_ignores_the_order_of_tokens_in_a_trace(seed):
    rng = np.random.default_rng(seed)
    position, inside = rng.normal(size=12).round(1), rng.random(12) < 0.4
    order = rng.permutation(12)
    plain = match(position, inside, np.array([12]), caliper=0.25)
    moved = match(position[order], inside[order], np.array([12]), caliper=0.25)
    np.testing.assert_array_equal(moved.matched, plain.matched[order])
    np.testing.assert_allclose(moved.weight, plain.weight[order], atol=1e-12)


def test_raw_means_and_log_ratios_are_those_of_the_tokens():
    tokens = made_up_tokens(problems=10, frames=1, families=1)
    found, _ = described(tokens)
    kind, base = tokens.kind.values, tokens.logp.values[0].astype(float)
    for term, family in (("verdict", "verdict"), ("placebo", "placebo-0")):
        z = [
            tokens.logp.sel(condition=f"{family}.f0.{side}").values - base
            for side in ("pos", "neg")
        ]
        sizes = {
            "absolute_shift": (np.abs(z[0]) + np.abs(z[1])) / 2,
            "sensitivity": sensitivity(*z),
            "absolute_contrast": np.abs(contrast(*z)),
        }
        for measure, size in sizes.items():
            for name in np.unique(kind):
                own, rest = size[kind == name].mean(), size[kind != name].mean()
                at = found.sel(measure=measure, kind=name, term=term)
                assert at.estimate.sel(scale="mean").item() == pytest.approx(own)
                assert at.estimate.sel(scale="log_ratio").item() == pytest.approx(
                    np.log(own / rest)
                )
    triple = found.estimate
    np.testing.assert_allclose(
        triple.sel(term="difference"), triple.sel(term="verdict") - triple.sel(term="placebo")
    )
    assert found.measure.values.tolist() == list(MEASURES)
    assert found.n_tokens.sum() == tokens.sizes["token"]


def planted(tokens, size, *, kind="digit"):
    """Every condition moves by `size` where the token is of the kind, else by 1, up and down."""
    base = tokens.logp.values[0]
    own = np.where(tokens.kind.values == kind, size, 1.0)
    for index, level in enumerate(tokens.level.values):
        if level != "none":
            tokens.logp.values[index] = base + (own if level == "pos" else -own)
    return tokens


def test_a_planted_ratio_is_found_raw_and_matched():
    tokens = planted(made_up_tokens(problems=25), 2.0)
    found, balance = described(tokens)
    for scale in ("log_ratio", "log_ratio_matched"):
        at = found.estimate.sel(scale=scale, measure="sensitivity")
        assert at.sel(kind="digit", term="verdict").item() == pytest.approx(np.log(2), abs=1e-6)
        assert at.sel(kind="digit", term="difference").item() == pytest.approx(0, abs=1e-6)
    assert (found.estimate.sel(scale="log_ratio", kind="format", term="verdict") < 0).all()
    assert balance.matched_share.min() > 0.5
    assert (np.abs(balance.difference.sel(covariate="log_surprisal", stage="after")) < 0.05).all()


def test_matching_takes_away_what_surprisal_explains():
    tokens = made_up_tokens(problems=40, length=(60, 80), frames=1, families=1)
    rng = np.random.default_rng(0)
    base = tokens.logp.values[0]
    # Digits are the surprising tokens; shifts depend on surprisal alone.
    kind = np.where(-base + 0.5 * rng.normal(size=base.size) > 0.7, "digit", "format")
    tokens = tokens.assign_coords(kind=("token", kind))
    for index, level in enumerate(tokens.level.values):
        if level != "none":
            tokens.logp.values[index] = base + (0.2 if level == "pos" else 0.1) * -base
    found, balance = described(tokens)
    at = found.estimate.sel(measure="absolute_shift", kind="digit", term="verdict")
    assert at.sel(scale="log_ratio").item() > 1.0
    assert abs(at.sel(scale="log_ratio_matched").item()) < 0.1
    gap = balance.difference.sel(covariate="log_surprisal", kind="digit")
    assert gap.sel(stage="before").item() > 0.8
    assert abs(gap.sel(stage="after").item()) < 0.05


def test_balance_by_hand():
    tokens = made_up_tokens(problems=10, frames=1, families=1)
    _, balance = described(tokens)
    kind = tokens.kind.values
    length = tokens.length.values
    relative = np.concatenate([(np.arange(n) + 0.5) / n for n in length])
    own, rest = relative[kind == "digit"].mean(), relative[kind != "digit"].mean()
    found = balance.difference.sel(kind="digit", covariate="relative_position", stage="before")
    assert found.item() == pytest.approx((own - rest) / relative.std())


def test_only_one_kind_has_nothing_to_be_set_against():
    tokens = made_up_tokens(problems=25)
    tokens = tokens.assign_coords(kind=("token", np.full(tokens.sizes["token"], "other")))
    found, balance = described(tokens)
    assert np.isfinite(found.estimate.sel(scale="mean")).all()
    for scale in ("log_ratio", "log_ratio_matched"):
        assert (found.method.sel(scale=scale) == Method.NONE_UNDEFINED).all()
    assert balance.matched_share.item() == 0
    assert np.isnan(balance.difference).all()


def test_shifts_of_zero_have_no_log_ratio():
    tokens = made_up_tokens(problems=25)
    tokens.logp.values[:] = tokens.logp.values[0]
    found, _ = described(tokens)
    assert (found.estimate.sel(scale="mean") == 0).all()
    assert (found.method.sel(scale="log_ratio") == Method.NONE_UNDEFINED).all()


def test_a_kind_in_few_problems_gets_no_interval():
    tokens = made_up_tokens(problems=25)
    kind = tokens.kind.values.astype("<U12")
    rare = np.isin(tokens.problem.values, range(5))
    kind[rare & (tokens.kind.values == "digit")] = "final_answer"
    found, _ = described(tokens.assign_coords(kind=("token", kind)))
    at = found.sel(kind="final_answer", scale="mean", term="verdict")
    assert (at.n_clusters == 5).all()
    assert (at.method == Method.NONE_FEW_PROBLEMS).all()
    assert np.isnan(at.interval).all()
    assert np.isfinite(at.estimate).all()


def test_incomparable_rollouts_are_left_out_of_their_pair():
    tokens = made_up_tokens(problems=10, frames=1, families=1)
    first = tokens.rollout.values == 0
    tokens.comparable.values[1, 0] = False  # verdict.f0.pos
    tokens.logp.values[1, first] = np.nan
    found, _ = described(tokens)
    rest = tokens.isel(token=~first)
    expected, _ = described(rest)
    at = {"scale": "mean"}
    np.testing.assert_allclose(
        found.estimate.sel(term="verdict", **at),
        expected.estimate.sel(term="verdict", **at),
    )
    assert not np.allclose(
        found.estimate.sel(term="placebo", **at), expected.estimate.sel(term="placebo", **at)
    )
