import numpy as np
import pytest

from tests.stats.builders import made_up_tokens, with_steps
from tests.stats.test_steps import steps_in
from tokensense.stats.beyond import CALIPER, beyond, covariates, matched
from tokensense.stats.contests import folds_of
from tokensense.stats.resampling import Method, Resampling


def result(tokens, families=("placebo-0", "placebo-1"), resamples=300):
    steps = steps_in(tokens)
    plan = Resampling(len(np.unique(tokens.cluster.values)), resamples, 0)
    return steps, beyond(steps, families=families, plan=plan, attrs={})


def labelled(planted=None, **options):
    shape = {"problems": 60, "length": (9, 12), "frames": 2, "families": 2, "generators": ("a",)}
    return with_steps(made_up_tokens(**(shape | options)), size=3, planted=planted)


def test_contests_are_those_of_the_plain_loop():
    steps = steps_in(labelled(generators=("a", "b"), problems=15))
    met = matched(steps)
    place = covariates(steps)
    expected = {
        (i, j)
        for i in np.flatnonzero(steps.wrong)
        for j in np.flatnonzero(steps.right)
        if steps.place[i] == steps.place[j]
        and steps.generator[i] == steps.generator[j]
        and steps.cluster[i] != steps.cluster[j]
        and (np.abs(place[:, i] - place[:, j]) <= CALIPER).all()
    }
    assert expected
    assert set(zip(met.first.tolist(), met.second.tolist(), strict=True)) == expected


def test_a_planted_verdict_adds_and_a_placebo_does_not():
    _, found = result(labelled("verdict"))
    at = found.sel(statistic="increase")
    assert at.interval.sel(term="verdict")[0] > 0.2
    assert at.interval.sel(term="difference")[0] > 0.2
    assert abs(at.estimate.sel(term="placebo")) < 0.1
    assert found.attrs["p"] < 1e-6
    assert found.attrs["redundant"] == 0
    auroc = found.sel(statistic="auroc").estimate
    assert auroc.sel(term="verdict") > 0.9
    assert auroc.sel(term="verdict") - at.estimate.sel(term="verdict") == pytest.approx(
        found.attrs["auroc_without"]
    )


def test_nothing_planted_gives_one_half_and_no_increase():
    _, found = result(labelled())
    assert found.attrs["auroc_without"] == pytest.approx(0.5, abs=0.12)
    low, high = found.interval.sel(statistic="increase", term="verdict").values
    assert low < 0 < high
    assert found.attrs["p"] > 0.05


def test_with_one_column_and_one_fold_pair_the_estimate_is_the_share_of_contests_won():
    steps, found = result(labelled("verdict"))
    met = matched(steps)
    # A model that goes by sensitivity alone orders nearly all contests as the fitted one does.
    size = steps.columns["sensitivity"][0]
    won = np.average(size[met.first] > size[met.second], weights=met.weight)
    assert found.estimate.sel(statistic="auroc", term="verdict") == pytest.approx(won, abs=0.05)
    assert folds_of(60, 0).size == 60


def test_shifts_that_are_all_zero_add_exactly_nothing():
    tokens = labelled("surprisal")
    tokens.logp[:] = tokens.logp[0].values
    _, found = result(tokens)
    at = found.sel(statistic="increase", term="verdict")
    assert at.estimate == 0.0
    assert at.method == Method.NONE_NO_VARIATION
    assert found.attrs["redundant"] == 1
    assert found.attrs["p"] == 1.0


def test_matching_balances():
    _, found = result(labelled("surprisal", problems=80))
    before, after = found.balance.sel(covariate="log_surprisal").values
    assert before > 0.5
    assert abs(after) < before / 3


@pytest.mark.parametrize("problems", [1, 9])
def test_few_problem_texts_are_not_estimable(problems):
    _, found = result(labelled(problems=problems))
    assert found.attrs["statement"].startswith("not estimable")
    assert "20 needed" in found.attrs["statement"]
    assert "p" not in found.attrs
    assert np.isnan(found.estimate).all()
    assert (found.method == Method.NONE_UNDEFINED).all()


def test_entropy_that_is_not_known_is_said():
    tokens = labelled()
    tokens.entropy.values[0, 5] = np.nan
    _, found = result(tokens)
    assert found.attrs["statement"] == "not estimable: entropy not finite on some steps"


def test_without_placebo_the_verdict_stands_alone():
    _, found = result(labelled("verdict", families=0), families=())
    assert found.estimate.sel(statistic="increase", term="verdict") > 0.2
    assert np.isnan(found.estimate.sel(statistic="increase", term="difference"))
