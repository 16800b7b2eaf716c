import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from tokensense.stats.ranking import Traces, draws, hits, mean_shares, precisions, wins
from tokensense.stats.resampling import Resampling, intervals


def made_up(seed=0, problems=12, ties=True):
    """Traces of 3 to 8 tokens, one to three a problem, and a score, with ties where asked for."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(problems), rng.integers(1, 4, problems))
    length = rng.integers(3, 9, cluster.size)
    start = np.cumsum(length) - length
    marked = np.zeros(length.sum(), bool)
    marked[start + rng.integers(0, length)] = True
    score = rng.normal(size=marked.size) + marked
    traces = Traces(marked, np.repeat(cluster, length), length, problems)
    return (np.round(score) if ties else score), traces


def everything(traces):
    return np.ones((1, traces.clusters))


def one(shares, traces, count=None):
    count = everything(traces) if count is None else count
    return mean_shares(count, shares, owner=traces.owner)[0]


def alike(score):
    return np.zeros(score.size, np.int64)


def plain_auroc(score, marked, stratum):
    """Mean over marked tokens of the share of the others of their stratum that they beat."""
    found = []
    for p in np.flatnonzero(marked):
        rivals = [t for t in range(score.size) if not marked[t] and stratum[t] == stratum[p]]
        if rivals:
            won = [1.0 if score[t] < score[p] else 0.5 * (score[t] == score[p]) for t in rivals]
            found.append(sum(won) / len(won))
    return np.mean(found) if found else np.nan


def plain_precision(score, marked):
    """Precision summed over the steps of recall, thresholds at every value that occurs."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(score), reverse=True):
        chosen = score >= threshold
        recall = (chosen & marked).sum() / marked.sum()
        total += (recall - before) * (chosen & marked).sum() / chosen.sum()
        before = recall
    return total


def plain_hit(score, traces):
    """Share of traces whose highest token is marked, each tied one as likely."""
    found, start = [], 0
    for length in traces.length:
        own, mark = score[start : start + length], traces.marked[start : start + length]
        top = [i for i in range(length) if own[i] == max(own)]
        found.append(sum(bool(mark[i]) for i in top) / len(top))
        start += length
    return np.mean(found)


@pytest.mark.parametrize("ties", [True, False])
def test_without_strata_it_is_the_mann_whitney_statistic(ties):
    score, traces = made_up(ties=ties)
    mark = traces.marked
    u = mannwhitneyu(score[mark], score[~mark]).statistic / (mark.sum() * (~mark).sum())
    assert one(wins(score, traces, stratum=alike(score)), traces) == pytest.approx(u, abs=1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), strata=st.integers(1, 6))
def test_all_agree_with_slow_versions(seed, strata):
    score, traces = made_up(seed % 1000, problems=4)
    stratum = np.random.default_rng(seed).integers(0, strata, score.size)
    found = one(wins(score, traces, stratum=stratum), traces)
    np.testing.assert_allclose(found, plain_auroc(score, traces.marked, stratum), atol=1e-12)
    assert one(precisions(score, traces), traces) == pytest.approx(
        plain_precision(score, traces.marked), abs=1e-12
    )
    assert one(hits(score, traces), traces) == pytest.approx(plain_hit(score, traces), abs=1e-12)


@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_only_the_order_of_scores_counts(seed):
    score, traces = made_up(seed)
    moved = np.exp(score / 2) - 7
    stratum = np.arange(score.size) % 2
    for before, after in (
        (wins(score, traces, stratum=stratum), wins(moved, traces, stratum=stratum)),
        (precisions(score, traces), precisions(moved, traces)),
        (hits(score, traces), hits(moved, traces)),
    ):
        np.testing.assert_array_equal(before.part, after.part)
        np.testing.assert_array_equal(before.whole, after.whole)


@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_turning_a_score_around_mirrors_its_auroc(seed):
    score, traces = made_up(seed)
    stratum = np.arange(score.size) % 2
    found = [one(wins(turned, traces, stratum=stratum), traces) for turned in (score, -score)]
    assert sum(found) == pytest.approx(1.0)


def test_infinite_scores_are_the_lowest_and_the_highest():
    traces = Traces(np.array([True, False, False]), np.zeros(3, np.int64), np.array([3]), 1)
    for score, expected in (([-np.inf, 0, 1], 0.0), ([np.inf, 0, 1], 1.0), ([-np.inf] * 3, 0.5)):
        found = wins(np.array(score, float), traces, stratum=np.zeros(3, np.int64))
        assert one(found, traces) == expected


def test_a_marked_token_alone_in_its_stratum_takes_no_part():
    traces = Traces(
        np.array([True, False, True, False]), np.array([0, 0, 1, 1]), np.array([2, 2]), 2
    )
    shares = wins(np.array([0.0, 9.0, 1.0, 0.0]), traces, stratum=np.array([5, 0, 0, 0]))
    assert one(shares, traces) == 0.5  # the other one beats one of two
    nobody = wins(np.array([0.0, 9.0, 1.0, 0.0]), traces, stratum=np.array([0, 1, 2, 3]))
    assert np.isnan(one(nobody, traces))


def test_a_resample_is_a_sample_in_which_problems_stand_several_times():
    score, traces = made_up(3)
    stratum = np.arange(score.size) % 3
    count = np.random.default_rng(1).multinomial(12, np.full(12, 1 / 12))
    rollout = np.repeat(np.arange(traces.length.size), traces.length)
    copies = [
        r for r in range(traces.length.size) for _ in range(count[traces.cluster[rollout == r][0]])
    ]
    token = np.concatenate([np.flatnonzero(rollout == r) for r in copies])
    drawn = Traces(
        traces.marked[token], traces.cluster[token], traces.length[copies], traces.clusters
    )
    expected = (
        plain_auroc(score[token], drawn.marked, stratum[token]),
        plain_precision(score[token], drawn.marked),
        plain_hit(score[token], drawn),
    )
    statistics = (
        wins(score, traces, stratum=stratum),
        precisions(score, traces),
        hits(score, traces),
    )
    for shares, value in zip(statistics, expected, strict=True):
        found = one(shares, traces, count[None].astype(float))
        assert found == pytest.approx(value, abs=1e-12)


def test_draws_hold_estimate_resamples_and_jackknife():
    score, traces = made_up(5)
    statistics = [precisions(score, traces), hits(score, traces)]
    plan = Resampling(traces.clusters, 150, 2)
    found = draws(statistics, traces, plan=plan)
    counts = np.concatenate(list(plan.counts()))
    for output, shares in enumerate(statistics):
        np.testing.assert_allclose(
            found.values[:, output], mean_shares(counts, shares, owner=traces.owner)
        )
        without = [one(shares, traces, 1 - np.eye(12)[[c]]) for c in range(12)]
        pseudo = 12 * found.estimate[output] - 11 * np.array(without)
        np.testing.assert_allclose(found.pseudo[:, output], pseudo)
    assert found.clusters.tolist() == [12, 12]


def test_a_problem_without_a_comparison_has_no_part():
    score, traces = made_up(problems=9)
    stratum = np.where(traces.cluster == 4, 1, 0) * (1 + traces.marked)
    found = draws([wins(score, traces, stratum=stratum)], traces, plan=Resampling(9, 100, 0))
    assert found.clusters.tolist() == [8]
    assert np.isnan(found.pseudo[4, 0])
    assert np.isfinite(np.delete(found.pseudo[:, 0], 4)).all()
    assert np.isfinite(intervals(found).low).all()


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """A score that knows problems and no tokens: 1/2 lies in 95 % of the intervals."""
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        _, traces = made_up(seed, problems=40)
        effect = rng.normal(size=40)[traces.cluster]
        score = effect + rng.normal(size=effect.size)
        found = intervals(
            draws(
                [wins(score, traces, stratum=alike(score))], traces, plan=Resampling(40, 400, seed)
            )
        )
        covered += found.low[0] <= 0.5 <= found.high[0]
    assert 0.90 <= covered / 200 <= 0.99
