"""Kinds against permuted kinds: drawn permutations, a null with drift, a planted effect."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, false_discovery_control

from tests.stats.builders import made_up_tokens
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.permuted import FEWEST, kind_permuted, strata
from tokensense.stats.sample import read_sample
from tokensense.stats.shifts import contrast


def permuted(tokens):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    return kind_permuted(sample, pairs, terms=terms_of(sample, pairs), attrs={"seed": 0})


def slow_strata(surprisal, length):
    """Thirds by counting, rollout by rollout."""
    found, start = [], 0
    for rollout, n in enumerate(length):
        own = surprisal[start : start + n]
        for place in range(n):
            lower = sum(other < own[place] for other in own)
            found.append((rollout, 3 * place // n, 3 * lower // n))
        start += n
    return found


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_strata_are_thirds_of_place_and_surprisal_within_the_trace(length, seed):
    rng = np.random.default_rng(seed)
    tokens = made_up_tokens(problems=1, group=len(length), length=(1, 12), neutral=False)
    sample = read_sample(tokens)
    tied = np.round(sample.surprisal + rng.normal(0, 0.1, sample.surprisal.size), 1)
    sample = sample.__class__(**{**vars(sample), "surprisal": tied})
    found = strata(sample).tolist()
    slow = slow_strata(tied, sample.length)
    # The same tokens together, whatever the numbers are.
    assert [found.index(x) for x in found] == [slow.index(x) for x in slow]


def test_mean_and_spread_are_those_of_drawn_permutations():
    tokens = made_up_tokens(problems=4, frames=1, families=1)
    found = permuted(tokens)
    sample = read_sample(tokens)
    base = sample.logp[sample.base].astype(float)
    z = [
        sample.logp[list(tokens.condition.values).index(f"verdict.f0.{side}")] - base
        for side in ("pos", "neg")
    ]
    size, groups = np.abs(contrast(*z)), strata(sample)
    rng, kind = np.random.default_rng(0), sample.kind
    names = np.unique(kind)
    drawn = []
    for _ in range(2000):
        # Sorted by stratum, and anyhow within: the kinds of a stratum, shuffled.
        order, target = (
            np.lexsort((rng.random(kind.size), groups)),
            np.argsort(groups, kind="stable"),
        )
        shuffled = np.empty_like(kind)
        shuffled[target] = kind[order]
        drawn.append([size[shuffled == name].mean() for name in names])
    drawn = np.array(drawn)
    own = np.array([size[kind == name].mean() for name in names])
    at = found.sel(measure="absolute_contrast", term="verdict", kind=names)
    error = drawn.std(axis=0)
    np.testing.assert_allclose(
        at.excess, own - drawn.mean(axis=0), atol=4 * error.max() / 2000**0.5
    )
    np.testing.assert_allclose(at.error, error, rtol=0.08)  # 5 standard errors of 2,000 draws


def test_drift_of_kinds_and_shifts_with_position_is_no_finding():
    # Kinds and shifts both drift along the trace: shifting kinds around it rejects in 89 % of such
    # data sets (statistics.md 3.6); permuting within thirds leaves what drifts within a third.
    rejected, count = 0, 60
    for seed in range(count):
        rng = np.random.default_rng(seed)
        tokens = made_up_tokens(seed=seed, problems=6, frames=1, families=1, neutral=False)
        length = tokens.length.values
        place = np.concatenate([np.arange(n) // (n / 3) for n in length])
        tokens["kind"] = ("token", np.where(rng.random(place.size) < 0.2 + 0.3 * place, "a", "b"))
        base = tokens.logp.values[0]
        for index, level in enumerate(tokens.level.values):
            if level != "none":
                size = np.abs(rng.normal(0, 0.05, base.size)) * (1 + place)
                tokens.logp.values[index] = base + (size if level == "pos" else -size)
        found = permuted(tokens).sel(measure="absolute_contrast", kind="a", term="verdict")
        rejected += float(found.p) < 0.05
    assert binomtest(rejected, count, 0.05).pvalue > 0.001


def test_a_planted_kind_is_found_beyond_the_placebo():
    tokens = made_up_tokens(problems=20)
    base = tokens.logp.values[0]
    own = tokens.kind.values == "digit"
    for index, (family, level) in enumerate(
        zip(tokens.family.values, tokens.level.values, strict=True)
    ):
        if family == "verdict" and level != "none":
            tokens.logp.values[index] = base + np.where(own, 0.3, 0.1) * (
                1 if level == "pos" else -1
            )
    found = permuted(tokens).sel(measure="absolute_contrast")
    digit = found.sel(kind="digit")
    assert digit.excess.sel(term="verdict") > 0.05
    assert digit.p.sel(term="verdict") < 1e-6
    assert digit.p.sel(term="difference") < 1e-6
    for term in ("verdict", "placebo", "difference"):
        np.testing.assert_allclose(
            found.p_adjusted.sel(term=term), false_discovery_control(found.p.sel(term=term))
        )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda own, kind: np.zeros(own.size), "nothing varies"),
        (lambda own, kind: np.ones(own.size), "all alike"),
    ],
)
def test_what_does_not_vary_has_no_p(make, why):
    tokens = made_up_tokens(problems=3)
    base = tokens.logp.values[0]
    for index, level in enumerate(tokens.level.values):
        if level != "none":
            tokens.logp.values[index] = base + make(base, tokens.kind.values)
    found = permuted(tokens)
    # Rounding of float32 sums is not variation: the contrast is 0 to the last bit.
    assert np.isnan(found.p.sel(measure="absolute_contrast")).all(), why


def test_rare_kinds_have_no_p():
    tokens = made_up_tokens(problems=20)
    kinds = tokens.kind.values.astype("<U8")
    kinds[: FEWEST // 2] = "rare"
    tokens["kind"] = ("token", kinds)
    found = permuted(tokens)
    assert np.isnan(found.p.sel(kind="rare")).all()
    assert not np.isnan(found.p.sel(kind="digit")).any()
