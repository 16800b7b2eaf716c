import math

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.reference import statistics as reference
from tokensense.errors import SchemaError, StatisticsError
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import (
    Draws,
    Method,
    Resampling,
    cluster_sums,
    intervals,
    resample,
)


def mean(totals):
    return ratio(totals[:, :1], totals[:, 1:2])


def mean_sums(values, cluster, clusters):
    return cluster_sums(np.stack([values, np.ones_like(values)], 1), cluster, clusters=clusters)


def estimate(sums, statistic=mean, *, resamples=2000, seed=0, level=0.95, present=None):
    present = sums[:, 1:2] > 0 if present is None else present
    draws = resample(sums, statistic, plan=Resampling(len(sums), resamples, seed), present=present)
    return intervals(draws, level=level)


def clustered(seed=0, clusters=30, size=12, spread=1.0, uneven=False):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 * size, clusters) if uneven else np.full(clusters, size)
    cluster = np.repeat(np.arange(clusters), sizes)
    return spread * rng.normal(size=clusters)[cluster] + rng.normal(size=cluster.size), cluster


def test_each_draw_holds_as_many_problems_as_the_sample():
    counts = np.concatenate(list(Resampling(7, 300, 1).counts()))
    assert counts.shape == (300, 7)
    assert (counts.sum(axis=1) == 7).all()
    # a problem is missing from a draw with probability (6/7)^7 = .34
    assert 0.30 < (counts == 0).mean() < 0.38


@pytest.mark.parametrize("elements", [1, 7, 100, 10**6])
def test_draws_do_not_depend_on_the_batches(elements):
    plan = Resampling(7, 123, 5)
    whole = np.concatenate(list(plan.counts()))
    batches = list(plan.counts(elements=elements))
    np.testing.assert_array_equal(np.concatenate(batches), whole)
    assert max(batch.size for batch in batches) <= max(elements, 7)


def test_a_batch_holds_at_most_four_million_numbers():
    assert next(Resampling(1000, 10_000).counts()).shape == (4194, 1000)  # 2**22 / 1000


def test_the_seed_fixes_the_draws():
    first, second, other = (
        np.concatenate(list(Resampling(9, 100, seed).counts())) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_draws_equal_the_slow_bootstrap():
    values, cluster = clustered(clusters=25, uneven=True)
    slow = reference.bootstrap_draws(values, cluster, np.mean, clusters=25, resamples=100, seed=11)
    sums = mean_sums(values, cluster, 25)
    draws = resample(sums, mean, plan=Resampling(25, 100, 11), present=sums[:, 1:2] > 0)
    np.testing.assert_allclose(draws.values[:, 0], slow, rtol=1e-12)
    assert draws.estimate[0] == pytest.approx(values.mean(), rel=1e-12)


def test_percentiles_and_error_of_the_draws():
    values, cluster = clustered(clusters=25)
    sums = mean_sums(values, cluster, 25)
    draws = resample(sums, mean, plan=Resampling(25, 500, 0), present=sums[:, 1:2] > 0)
    found = intervals(draws, level=0.9)
    tail = stats.norm.cdf(-np.sqrt(25 / 24) * stats.t.ppf(0.95, 24))  # .04, not .05
    assert 0.035 < tail < 0.045
    expected = np.quantile(draws.values[:, 0], (tail, 1 - tail))
    np.testing.assert_allclose((found.low[0], found.high[0]), expected)
    assert found.error[0] == np.std(draws.values[:, 0], ddof=1)
    assert found.method[0] == Method.BOOTSTRAP
    assert found.clusters[0] == 25
    assert found.lost[0] == 0


def test_error_agrees_with_statsmodels_cluster_robust():
    values, cluster = clustered(clusters=200, uneven=True)
    robust = sm.OLS(values, np.ones_like(values)).fit(
        cov_type="cluster", cov_kwds={"groups": cluster, "use_correction": False}
    )
    found = estimate(mean_sums(values, cluster, 200), resamples=10_000)
    assert found.estimate[0] == pytest.approx(robust.params[0])
    assert found.error[0] == pytest.approx(robust.bse[0], rel=0.04)


def test_interval_agrees_with_scipy_bootstrap_of_problem_means():
    values, cluster = clustered(clusters=400, size=3)
    means = np.array([values[cluster == c].mean() for c in range(400)])
    other = stats.bootstrap(
        (means,),
        np.mean,
        n_resamples=20_000,
        batch=1000,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    found = estimate(mean_sums(values, cluster, 400), resamples=20_000)
    # Widened for 400 problems, the tails leave out .0243 a side: .01 standard errors further out.
    assert found.low[0] == pytest.approx(other.confidence_interval.low, abs=0.08 * found.error[0])
    assert found.high[0] == pytest.approx(other.confidence_interval.high, abs=0.08 * found.error[0])
    assert found.error[0] == pytest.approx(other.standard_error, rel=0.03)


@pytest.mark.parametrize("clusters", [8, 19])
def test_few_equal_problems_get_the_t_interval_of_their_means(clusters):
    values, cluster = clustered(clusters=clusters)
    means = [values[cluster == c].mean() for c in range(clusters)]
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    found = estimate(mean_sums(values, cluster, clusters))
    assert found.method[0] == Method.T_INTERVAL
    assert found.low[0] == pytest.approx(expected.low)
    assert found.high[0] == pytest.approx(expected.high)
    assert found.error[0] == pytest.approx(stats.sem(means))


def test_a_ratio_of_few_problems_keeps_its_estimand():
    values, cluster = clustered(clusters=12, uneven=True)
    found = estimate(mean_sums(values, cluster, 12))
    assert found.estimate[0] == pytest.approx(values.mean())  # not the mean of problem means
    assert (found.low[0] + found.high[0]) / 2 == pytest.approx(values.mean())


@pytest.mark.parametrize(
    ("clusters", "method"),
    [
        (1, Method.NONE_FEW_PROBLEMS),
        (7, Method.NONE_FEW_PROBLEMS),
        (8, Method.T_INTERVAL),
        (19, Method.T_INTERVAL),
        (20, Method.BOOTSTRAP),
    ],
)
def test_number_of_problems_decides_the_method(clusters, method):
    values, cluster = clustered(clusters=clusters)
    found = estimate(mean_sums(values, cluster, clusters), resamples=100)
    assert found.method[0] == method
    assert np.isnan(found.low[0]) == np.isnan(found.high[0]) == np.isnan(found.error[0])
    assert np.isnan(found.low[0]) == (method == Method.NONE_FEW_PROBLEMS)
    assert np.isfinite(found.estimate[0])


def test_only_problems_with_a_part_count():
    values, cluster = clustered(clusters=30)
    sums = mean_sums(values, cluster, 30)
    sums[10:] = 0  # twenty problems without such tokens
    found = estimate(sums)
    assert found.clusters[0] == 10
    assert found.method[0] == Method.T_INTERVAL
    expected = [values[cluster == c].mean() for c in range(10)]
    assert found.error[0] == pytest.approx(stats.sem(expected))


def test_constant_data_have_no_interval_and_say_so():
    cluster = np.repeat(np.arange(30), 4)
    found = estimate(mean_sums(np.full(120, 0.1), cluster, 30))
    assert found.estimate[0] == pytest.approx(0.1)
    assert found.method[0] == Method.NONE_NO_VARIATION
    assert np.isnan([found.low[0], found.high[0], found.error[0]]).all()


@pytest.mark.parametrize("clusters", [10, 30])
def test_constant_data_of_few_and_many_problems(clusters):
    found = estimate(mean_sums(np.ones(clusters), np.arange(clusters), clusters))
    assert found.method[0] == Method.NONE_NO_VARIATION


@pytest.mark.parametrize("clusters", [8, 25])
def test_a_difference_of_equals_does_not_vary_by_its_rounding(clusters):
    # the same mean by two orders of addition: equal but for the last bits
    sums = np.random.default_rng(1).random((clusters, 3))

    def statistic(totals):
        forth = (totals[:, 0] + totals[:, 1]) + totals[:, 2]
        back = totals[:, 0] + (totals[:, 1] + totals[:, 2])
        return (forth / clusters - back / clusters)[:, None]

    present = np.ones((clusters, 1), bool)
    found = intervals(resample(sums, statistic, plan=Resampling(clusters, 500), present=present))
    assert found.method[0] == Method.NONE_NO_VARIATION
    assert np.isnan(found.low[0])


def test_no_value_is_undefined_whatever_the_number_of_problems():
    found = estimate(np.zeros((30, 2)), present=np.zeros((30, 1), bool))
    assert found.method[0] == Method.NONE_UNDEFINED
    assert np.isnan(found.estimate[0])
    assert found.lost[0] == 2000


def test_resamples_without_value_make_it_unstable():
    # Only one problem holds tokens of this sort: (1 - 1/30)^30 = 36 % of the resamples miss it.
    sums = np.zeros((30, 2))
    sums[3] = (5.0, 2.0)
    sums[4] = (1.0, 0.0)  # so that the rest varies
    present = np.ones((30, 1), bool)  # as if all had a part
    found = estimate(sums, present=present)
    assert found.method[0] == Method.NONE_UNSTABLE
    assert 0.30 < found.lost[0] / 2000 < 0.42


@pytest.mark.parametrize(("lost", "method"), [(10, Method.BOOTSTRAP), (11, Method.NONE_UNSTABLE)])
def test_one_percent_may_be_lost(lost, method):
    values = np.random.default_rng(0).normal(size=(1000, 1))
    values[:lost] = np.nan
    draws = Draws(np.zeros(1), values, np.empty((0, 1)), np.array([30]))
    found = intervals(draws)
    assert found.method[0] == method
    assert found.lost[0] == lost


def test_few_lost_resamples_are_counted_and_left_out():
    # Five of thirty problems: (25/30)^30 = .4 % of the resamples are lost.
    rng = np.random.default_rng(0)
    sums = np.zeros((30, 2))
    sums[:5] = np.stack([rng.random(5), np.ones(5)], 1)
    found = estimate(sums, present=np.ones((30, 1), bool), resamples=10_000)
    assert 10 < found.lost[0] < 80
    assert found.method[0] == Method.BOOTSTRAP
    assert found.low[0] < found.estimate[0] < found.high[0]


def test_a_jackknife_without_value_gives_no_interval():
    # Without problem 0 nothing is left below the line.
    sums = np.zeros((10, 2))
    sums[:, 0] = np.arange(10.0)
    sums[0, 1] = 3.0
    found = estimate(sums, present=np.ones((10, 1), bool))
    assert found.method[0] == Method.NONE_UNSTABLE
    assert np.isnan(found.low[0])


def test_numbers_that_are_not_finite_are_refused():
    sums = np.ones((30, 2))
    sums[4, 0] = np.nan
    with pytest.raises(StatisticsError, match="cluster 4 has NaN"):
        estimate(sums)


def test_shapes_that_disagree_are_refused():
    plan = Resampling(30, 100)
    with pytest.raises(SchemaError, match="need the 30 clusters"):
        resample(np.ones((29, 2)), mean, plan=plan, present=np.ones((29, 1), bool))
    with pytest.raises(SchemaError, match="outputs"):
        resample(np.ones((30, 2)), mean, plan=plan, present=np.ones((30, 2), bool))
    with pytest.raises(SchemaError, match="cluster"):
        cluster_sums(np.ones((2, 1)), np.array([0, 3]), clusters=3)
    with pytest.raises(SchemaError, match="resamples"):
        Resampling(30, 99)
    with pytest.raises(SchemaError, match="clusters"):
        Resampling(0)
    draws = resample(np.ones((30, 2)), mean, plan=plan, present=np.ones((30, 1), bool))
    with pytest.raises(SchemaError, match="level"):
        intervals(draws, level=1.0)


def test_differences_are_paired():
    # y = x + constant: the difference does not vary although both sides do.
    values, cluster = clustered(clusters=40)
    sums = cluster_sums(
        np.stack([values, values + 0.5, np.ones_like(values)], 1), cluster, clusters=40
    )

    def both(totals):
        x, y = (ratio(totals[:, i], totals[:, 2]) for i in (0, 1))
        return np.stack([x, y, x - y], 1)

    found = estimate(sums, both, present=np.ones((40, 3), bool))
    assert found.estimate[2] == pytest.approx(-0.5)
    # Rounding of the difference is the only spread that is left.
    assert found.method[2] == Method.NONE_NO_VARIATION or found.error[2] < 1e-12
    assert found.error[0] > 0.01


@given(st.permutations(range(12)), st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_order_of_items_does_not_matter_and_scale_carries_over(order, factor):
    rng = np.random.default_rng(0)
    cluster = np.arange(120) % 24
    values = rng.normal(size=120).round(3)
    shuffled = np.concatenate([np.array(order) + 12 * block for block in range(10)])
    plain = estimate(mean_sums(values, cluster, 24), resamples=100)
    moved = estimate(mean_sums(values[shuffled], cluster[shuffled], 24), resamples=100)
    scaled = estimate(mean_sums(factor * values, cluster, 24), resamples=100)
    for name in ("estimate", "low", "high", "error"):
        one = getattr(plain, name)
        np.testing.assert_allclose(getattr(moved, name), one, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(getattr(scaled, name), factor * one, rtol=1e-9, atol=1e-12)


def coverage(clusters, *, studies, statistic, truth, draw, resamples=1000, level=0.95):
    hits = 0
    for study in range(studies):
        sums = draw(np.random.default_rng((1, study)))
        present = np.ones((len(sums), 1), bool)
        found = estimate(
            sums, statistic, resamples=resamples, seed=study, level=level, present=present
        )
        hits += bool(found.low[0] <= truth <= found.high[0])
    return hits / studies


def ratio_study(rng, clusters):
    """Problems of uneven size with a random effect; the ratio's truth is 0."""
    sizes = rng.integers(1, 9, clusters)
    cluster = np.repeat(np.arange(clusters), sizes)
    values = rng.normal(size=clusters)[cluster] + rng.normal(size=cluster.size)
    return mean_sums(values, cluster, clusters)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clusters", "least"), [(8, 0.91), (14, 0.93), (20, 0.93), (30, 0.93), (100, 0.93)]
)
def test_coverage_of_a_clustered_mean(clusters, least):
    # 2,000 studies: standard error of a coverage of .95 is .005. Problems are of very uneven size
    # (1 to 8), which eight of them cannot make up for.
    found = coverage(
        clusters,
        studies=2000,
        statistic=mean,
        truth=0.0,
        draw=lambda rng: ratio_study(rng, clusters),
    )
    assert least <= found <= 0.975
    # type-I error of the test "interval leaves out the truth"
    assert 1 - found <= 0.08


@pytest.mark.slow
def test_a_token_level_test_would_reject_far_too_often():
    # What the clusters are for: 20 tokens a problem, correlation within problems .5.
    rejected = 0
    for study in range(300):
        rng = np.random.default_rng(study)
        values = np.repeat(rng.normal(size=30), 20) + rng.normal(size=600)
        rejected += stats.ttest_1samp(values, 0).pvalue < 0.05
    assert rejected / 300 > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "least"), [(14, 0.93), (30, 0.90), (60, 0.92), (150, 0.93)])
def test_coverage_of_a_correlation(clusters, least):
    # A skewed statistic under strong problem effects: percentiles reach .92 at about 50 problems.
    # x and y share a problem effect: correlation (.5 + .25) / (.5 + .5) at the level of tokens.
    def draw(rng):
        cluster = np.repeat(np.arange(clusters), 40)
        shared = rng.normal(size=clusters * 40) * math.sqrt(0.5)
        group = rng.normal(size=clusters)[cluster] * 0.5
        x, y = (shared + group + 0.5 * rng.normal(size=cluster.size) for _ in range(2))
        columns = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        return cluster_sums(columns, cluster, clusters=clusters)

    def correlation(t):
        n, x, y, xx, yy, xy = np.moveaxis(t, -1, 0)
        x, y = x / n, y / n
        return ((xy / n - x * y) / np.sqrt((xx / n - x * x) * (yy / n - y * y)))[:, None]

    found = coverage(clusters, studies=1000, statistic=correlation, truth=0.75, draw=draw)
    assert least <= found <= 0.98
