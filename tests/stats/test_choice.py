import numpy as np
import pytest

from tests.stats.builders import made_up_tokens, with_steps
from tests.stats.test_steps import steps_in
from tokensense.stats.choice import chosen, step_choice
from tokensense.stats.ranking import Traces, draws, hits, precisions, wins
from tokensense.stats.resampling import Resampling


def result(tokens, resamples=300, **options):
    steps = steps_in(tokens, **options)
    plan = Resampling(len(np.unique(tokens.cluster.values)), resamples, 0)
    return steps, step_choice(steps, families=("placebo-0",), plan=plan, attrs={})


def labelled(planted=None, **options):
    shape = {"problems": 30, "length": (9, 12), "frames": 1, "families": 1}
    return with_steps(made_up_tokens(**(shape | options)), size=3, planted=planted)


def test_choice_within_a_trace_is_that_of_ranking_with_a_stratum_a_trace():
    rng = np.random.default_rng(0)
    size = rng.integers(2, 6, 12)
    start = np.cumsum(size) - size
    marked = np.zeros(size.sum(), bool)
    marked[start + rng.integers(0, size)] = True
    trace = np.repeat(np.arange(12), size)
    score = rng.integers(0, 3, size.sum()).astype(float)
    score[3] = -np.inf
    traces = Traces(marked, trace, size, 12)
    found = chosen(score, traces)
    plan = Resampling(12, 100, 0)
    shares = [wins(score, traces, stratum=trace), hits(score, traces)]
    expected = draws(shares, traces, plan=plan).estimate
    np.testing.assert_allclose(found.mean(axis=0)[[0, 2]], expected)
    for row, (first, last) in enumerate(zip(start, start + size, strict=True)):
        alone = Traces(marked[first:last], np.zeros(size[row], int), size[[row]], 1)
        share = precisions(score[first:last], alone)
        assert found[row, 1] == pytest.approx((share.part / share.whole).item())


def test_constant_is_chance():
    steps, found = result(labelled())
    at = found.estimate.sel(score="constant")
    assert at.sel(statistic="auroc") == 0.5
    assert at.sel(statistic="auroc_at_equal_surprisal") == 0.5
    traces = np.unique(steps.trace[steps.wrong])
    chance = np.mean(1 / np.bincount(steps.trace)[traces])
    assert at.sel(statistic="hit_at_1") == pytest.approx(chance)
    assert at.sel(statistic="average_precision") == pytest.approx(chance)


def test_a_planted_verdict_is_chosen_by_its_scores_and_the_model():
    _, found = result(labelled("verdict", problems=60, seed=7))
    at = found.estimate.sel(statistic="hit_at_1")
    assert at.sel(score="absolute_contrast") > 0.95
    # likelier under pos is what the wrong step is here: the sign is stated, not chosen
    assert found.estimate.sel(statistic="auroc", score="signed_contrast") < 0.05
    assert at.sel(score="model_with") > 0.9
    assert at.sel(score="placebo_absolute_contrast") < 0.6
    assert at.sel(score="placebo_model_with") < 0.6
    auroc = found.sel(statistic="auroc")
    assert auroc.estimate.sel(score="model_without") == pytest.approx(0.5, abs=0.15)
    wide = auroc.simultaneous.sel(score="surprisal")
    own = auroc.interval.sel(score="surprisal")
    assert wide[0] < own[0] < own[1] < wide[1]


def test_directions_are_stated():
    scores = {"weight": np.zeros(labelled().sizes["token"])}
    _, found = result(labelled(), scores=scores)
    said = found.direction.to_series()
    assert said["weight"] == "as given: high is blamed"
    assert said["weight_max"] == "as given: high is blamed; max over the step"
    assert "likelier under neg" in said["signed_contrast_top_3"]
    assert "sum of squared" in said["square_sum"]


def test_scores_that_are_nan_have_no_value_and_infinite_ones_do():
    tokens = labelled()
    size = tokens.sizes["token"]
    scores = {"gap": np.where(np.arange(size) == 0, np.nan, 1.0), "low": np.full(size, -np.inf)}
    first_wrong = np.flatnonzero(tokens.label.values == "error")[0]
    scores["gap"] = np.where(tokens.rollout.values == first_wrong, np.nan, 1.0)
    _, found = result(tokens, scores=scores)
    assert "gap" not in found.score.values
    assert "gap" in found.attrs["statement"]
    assert found.estimate.sel(statistic="auroc", score="low") == 0.5


def test_responses_of_one_step_offer_no_choice():
    tokens = with_steps(made_up_tokens(problems=5, length=(3, 3), frames=1, families=1), size=3)
    assert result(tokens)[1] is None


def test_one_problem_has_numbers_without_intervals_and_models_that_cannot_be_fitted():
    _, found = result(labelled(problems=1, group=6, seed=2))
    assert np.isnan(found.interval).all()
    assert np.isnan(found.simultaneous).all()
    assert "model_with" not in found.score.values
    assert "no fit" in found.attrs["statement"]


def test_few_problems_have_t_intervals():
    _, found = result(labelled(problems=12))
    assert np.isfinite(found.interval.sel(score="surprisal")).all()
