import numpy as np

from tests.stats.builders import made_up_tokens, with_steps
from tokensense.stats.describe import describe
from tokensense.stats.generators import NOBODY, leave_one_generator_out


def test_the_whole_comes_first_and_is_what_describe_says():
    tokens = with_steps(made_up_tokens(problems=25, length=(4, 9), scenario="signal"))
    found = leave_one_generator_out(tokens, resamples=100)
    whole = describe(tokens, resamples=100)["decision"]
    assert found.left_out.values.tolist() == [NOBODY, "a", "b"]
    np.testing.assert_allclose(
        found.estimate.sel(left_out=NOBODY), whole.estimate.sel(endpoint=found.endpoint)
    )
    assert found.word.values[0] == whole.attrs["word"]


def test_without_one_is_the_estimate_on_the_others():
    tokens = made_up_tokens(problems=25, length=(4, 9), scenario="signal")
    found = leave_one_generator_out(tokens, resamples=100)
    fewer = describe(tokens.sel(token=tokens["generator"].values != "b"), resamples=100)
    at = found.estimate.sel(left_out="b")
    informative = fewer["informative"].estimate.sel(statistic="auroc_sum_balanced", term="verdict")
    np.testing.assert_allclose(at.sel(endpoint="informative"), informative)
    expected = fewer["read"].estimate.sel(statistic="lambda", term="difference")
    np.testing.assert_allclose(at.sel(endpoint="read"), expected)
    change = np.abs(found.estimate[1:] - found.estimate[0]).max("left_out")
    np.testing.assert_allclose(found.largest_change[:2], change[:2])
    assert np.isnan(found.largest_change.sel(endpoint="beyond"))


def test_one_generator_alone_cannot_be_left_out():
    assert leave_one_generator_out(made_up_tokens(problems=3, generators=("a",))) is None


def test_the_only_comparable_generator_left_out_is_said():
    tokens = made_up_tokens(problems=10, length=(3, 5), generators=("a", "b"))
    tokens.comparable.values[1:, 1::2] = False
    found = leave_one_generator_out(tokens, resamples=100)
    assert np.isnan(found.estimate.sel(left_out="a")).all()
    assert found.word.sel(left_out="a") == "not_estimable"
    assert str(found.statement.sel(left_out="a").values[0]).startswith("not estimable")
