import tracemalloc

import numpy as np
import pytest

from tests.reference import statistics as reference
from tests.stats.builders import made_up_tokens
from tokensense.stats.catalogue import CATALOGUE
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample
from tokensense.stats.triples import averages, describe_pairs, family_groups, pair_sums


def described(tokens, *, floor=None, weighting="token", resamples=200):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    level = np.full(sample.kind.size, 0.02) if floor is None else floor
    return describe_pairs(
        pair_sums(sample, pairs, floor=level),
        family_groups(sample, pairs),
        terms=terms_of(sample, pairs),
        weighting=weighting,
        plan=Resampling(sample.clusters, resamples, 0),
        attrs={"seed": 0},
    )


def slow(tokens, family, frame, keep=None):
    base = tokens.logp.sel(condition="base").values.astype(float)
    z = [
        tokens.logp.sel(condition=f"{family}.{frame}.{side}").values.astype(float) - base
        for side in ("pos", "neg")
    ]
    p = np.exp(base)
    square = tokens.p_square_sum.values[0].astype(float)
    distance = np.sqrt((1 - p) ** 2 + np.clip(square - p**2, 0, (1 - p) ** 2))
    keep = np.ones(base.size, bool) if keep is None else keep
    columns = [values[keep] for values in (*z, -base, distance, tokens.rollout.values)]
    return reference.pair_statistics(*columns, floor=np.full(keep.sum(), 0.02))


def test_the_triple_averages_pairs_within_and_then_over_families():
    tokens = made_up_tokens(problems=8, group=2, length=(3, 9), frames=2, families=3)
    triple, family = described(tokens)
    by_family = {}
    for name in ("verdict", "placebo-0", "placebo-1", "placebo-2"):
        frames = [slow(tokens, name, frame) for frame in ("f0", "f1")]
        by_family[name] = {k: np.mean([one[k] for one in frames]) for k in CATALOGUE}
    for statistic in CATALOGUE:
        verdict = by_family["verdict"][statistic]
        placebo = np.mean([by_family[f"placebo-{i}"][statistic] for i in range(3)])
        at = triple.estimate.sel(statistic=statistic)
        np.testing.assert_allclose(at, [verdict, placebo, verdict - placebo], atol=1e-9)
        for name, values in by_family.items():
            found = family.estimate.sel(statistic=statistic, family=name).item()
            assert found == pytest.approx(values[statistic], abs=1e-9)


def test_families_of_unequal_size_weigh_the_same():
    values = np.array([[1.0, 2.0, 6.0, 9.0]])
    found = averages(values, [((0,),), ((1, 2), (3,)), ()])
    np.testing.assert_array_equal(found, [[1.0, (4 + 9) / 2, np.nan]])


def test_counts_and_units():
    tokens = made_up_tokens(problems=25, group=2, length=(3, 9))
    triple, family = described(tokens)
    assert (triple.n_clusters == 25).all()
    assert (triple.n_rollouts == 50).all()
    assert (triple.n_tokens.sel(statistic="correlation") == tokens.sizes["token"]).all()
    affected = triple.n_tokens.sel(statistic="same_direction_above_floor", term="verdict")
    share = triple.estimate.sel(statistic="affected_above_floor", term="verdict")
    assert affected.item() == pytest.approx(share.item() * tokens.sizes["token"])
    assert triple.unit.sel(statistic="mean_shift").item() == "nats"
    assert triple.method.attrs["flag_meanings"].split()[0] == "bootstrap"
    assert family.family.values.tolist() == ["placebo-0", "placebo-1", "placebo-2", "verdict"]
    assert triple.attrs["weighting"] == "token"


def test_rollouts_equal_weighs_every_response_the_same():
    tokens = made_up_tokens(problems=25, group=2, length=(2, 30))
    triple, _ = described(tokens, weighting="rollout")
    base = tokens.logp.values[0].astype(float)
    means = []
    for frame in ("f0", "f1"):
        z = [
            np.abs(tokens.logp.sel(condition=f"verdict.{frame}.{side}").values - base)
            for side in ("pos", "neg")
        ]
        size = (z[0] + z[1]) / 2
        means.append(
            np.mean(
                [size[tokens.rollout.values == r].mean() for r in range(tokens.sizes["rollout"])]
            )
        )
    found = triple.estimate.sel(statistic="mean_absolute_shift", term="verdict").item()
    assert found == pytest.approx(np.mean(means))


def test_without_a_floor_what_needs_it_is_not_estimable():
    tokens = made_up_tokens(problems=25)
    triple, _ = described(tokens, floor=np.full(tokens.sizes["token"], np.nan))
    for name in ("same_direction_above_floor", "reversal_above_floor", "affected_above_floor"):
        assert (triple.method.sel(statistic=name) == Method.NONE_UNDEFINED).all()
        assert (triple.n_clusters.sel(statistic=name) == 0).all()
    assert (triple.method.sel(statistic="same_direction") == Method.BOOTSTRAP).all()


def test_without_placebo_two_terms_are_not_estimable():
    tokens = made_up_tokens(problems=25).isel(condition=slice(0, 5))
    triple, _ = described(tokens)
    assert np.isfinite(triple.estimate.sel(term="verdict")).all()
    for term in ("placebo", "difference"):
        assert (triple.method.sel(term=term) == Method.NONE_UNDEFINED).all()
        assert (triple.n_clusters.sel(term=term) == 0).all()
        assert triple.n_rollouts.sel(term=term) == 0


def test_incomparable_rollouts_leave_their_pair_alone():
    tokens = made_up_tokens(problems=8, group=2, length=(3, 9), frames=1, families=1)
    gone = tokens.rollout.values == 3
    tokens.comparable.values[1, 3] = False
    tokens.logp.values[1, gone] = np.nan
    triple, _ = described(tokens)
    verdict = slow(tokens, "verdict", "f0", keep=~gone)
    placebo = slow(tokens, "placebo-0", "f0")
    for statistic in CATALOGUE:
        at = triple.estimate.sel(statistic=statistic)
        np.testing.assert_allclose(at[:2], [verdict[statistic], placebo[statistic]], atol=1e-9)
    assert triple.n_rollouts.values.tolist() == [15, 16, 15]


def test_families_keep_tone_and_placement_apart():
    tokens = made_up_tokens(problems=4)
    tone, placement = (tokens[name].values.astype("<U9") for name in ("tone", "placement"))
    tone[1], tone[2] = "praise", "blame"
    placement[5:7] = "system"
    tokens = tokens.assign_coords(tone=("condition", tone), placement=("condition", placement))
    sample = read_sample(tokens)
    groups = family_groups(sample, pairs_of(sample))
    assert list(groups) == [
        "placebo-0",
        "placebo-0:system",
        "placebo-1",
        "placebo-2",
        "verdict",
        "verdict:praise-blame",
    ]


def test_equal_verdict_and_placebo_differ_by_nothing():
    tokens = made_up_tokens(problems=25, families=1)
    for frame in ("f0", "f1"):
        for side in ("pos", "neg"):
            tokens.logp.loc[f"placebo-0.{frame}.{side}"] = tokens.logp.loc[
                f"verdict.{frame}.{side}"
            ]
    triple, _ = described(tokens)
    assert (triple.estimate.sel(term="difference") == 0).all()
    assert (triple.method.sel(term="difference") == Method.NONE_NO_VARIATION).all()


def test_differences_are_tighter_than_unpaired_ones_would_be():
    tokens = made_up_tokens(problems=60, scenario="placebo_like")
    triple, _ = described(tokens, resamples=1000)
    error = triple.error.sel(statistic="mean_absolute_shift")
    unpaired = np.hypot(error.sel(term="verdict"), error.sel(term="placebo"))
    assert error.sel(term="difference") < 0.8 * unpaired


@pytest.mark.slow
def test_size_of_the_differences_under_the_null():
    """Verdict and placebo drawn alike: 95 % intervals of differences leave out 0 in 5 %."""
    names = ["same_direction", "contrast_variance_share", "mean_absolute_contrast", "correlation"]
    rejected = np.zeros(len(names))
    studies = 200
    for seed in range(studies):
        tokens = made_up_tokens(
            seed=seed, problems=40, group=1, length=(5, 15), frames=1, families=3, neutral=False
        )
        at = described(tokens, resamples=400)[0].sel(statistic=names, term="difference")
        low, high = at.interval.values.T
        rejected += (low > 0) | (high < 0)
    # .05, with three standard errors of .015 above it.
    assert (rejected / studies <= 0.10).all(), dict(zip(names, rejected / studies, strict=True))


def test_columns_are_summed_as_they_are_made():
    # All 38 of them at once are 300 bytes a token and more.
    sample = read_sample(made_up_tokens(problems=20, length=(200, 300), frames=1, families=1))
    pairs = pairs_of(sample)
    floor = np.full(sample.kind.size, 0.1)
    tracemalloc.start()
    pair_sums(sample, pairs, floor=floor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / sample.kind.size < 200
