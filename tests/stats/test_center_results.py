import numpy as np
import pytest

from tokensense.credit.delta import dense
from tokensense.errors import StatisticsError
from tokensense.segments import broadcast
from tokensense.stats.center_results import DRAWS, Pool, center_results
from tokensense.stats.centers import center_numbers

ROLLOUTS = 48


def made(*, seed: int = 0, told: float = 1.0):
    """Vectors whose first coordinate knows the side of the response, in tokens of kind `digit`."""
    rng = np.random.default_rng(seed)
    length = rng.integers(4, 9, ROLLOUTS)
    advantage = np.resize([1.0, -1.0, 0.5, -0.5], ROLLOUTS)
    count = int(length.sum())
    kind = np.resize(["digit", "format"], count)
    vectors = rng.normal(size=(count, 5)) + 1.0
    vectors[:, 0] += told * 4 * np.sign(broadcast(advantage, length)) * (kind == "digit")
    number = np.arange(ROLLOUTS)
    pool = Pool(length, number // 2, number // 4, kind, rng.integers(0, 6, count))
    return vectors, advantage, pool


@pytest.fixture(scope="module")
def found():
    return center_results(*made(), attrs={"scored_by": "made up", "off_policy": 0}, resamples=200)


def test_numbers_of_all_tokens_are_those_of_center_numbers(found):
    vectors, advantage, pool = made()
    expected = center_numbers(dense(vectors), broadcast(advantage, pool.length))
    one = found["centers"].sel(score="all tokens")
    for name in ("cosine", "contrast", "cancellation", "tilt"):
        assert float(one["estimate"].sel(statistic=name)) == pytest.approx(expected[name])
    for side in ("positive", "negative"):
        assert float(one[f"mass_{side}"]) == pytest.approx(expected[f"mass_{side}"])


def test_a_kind_left_out_is_left_out(found):
    vectors, advantage, pool = made()
    kept = np.where(pool.kind == "digit", 0.0, broadcast(advantage, pool.length))
    expected = center_numbers(dense(vectors), kept)
    one = found["centers"].sel(score="without digit")
    assert float(one["estimate"].sel(statistic="cosine")) == pytest.approx(expected["cosine"])
    contrast = found["centers"]["estimate"].sel(statistic="contrast")
    # What tells the sides apart is in the digits: without them, as without labels, it is gone.
    assert float(contrast.sel(score="without digit")) < 0.3
    assert float(contrast.sel(score="as many random as digit")) > 0.4
    assert float(contrast.sel(score="advantages shuffled")) < 0.3
    assert float(contrast.sel(score="all tokens")) > 0.4


def test_random_removal_takes_as_many_tokens_of_every_response(found):
    n = found["centers"]["n_tokens"]
    assert int(n.sel(score="as many random as digit")) == int(n.sel(score="without digit"))
    assert DRAWS > 1


def test_lambda_shares_add_up_and_types_are_means(found):
    shares = found["center_lambda"]["share"]
    np.testing.assert_allclose(shares.sum("bin"), 1.0)
    types = found["center_types"]
    assert ((types["estimate"] >= 0.8) & (types["estimate"] <= 1.2)).all()
    _, _, pool = made()
    counts = np.bincount(pool.token_id)
    np.testing.assert_array_equal(types["n_tokens"], counts[types["token_id"].values])


def test_one_side_alone_has_no_centers():
    vectors, advantage, pool = made()
    with pytest.raises(StatisticsError, match="one side is empty"):
        center_results(vectors, np.abs(advantage), pool, attrs={})


def test_no_interval_lies_where_the_number_cannot(found):
    """Few problem texts with much noise: the t interval itself would go beyond."""
    vectors, advantage, pool = made(told=0.0)
    few = pool._replace(cluster=pool.cluster // 3)
    result = center_results(vectors, advantage, few, attrs={}, resamples=100)["centers"]
    limits = {"cosine": 1.0, "contrast": 1.0, "cancellation": 1.0}
    for name, most in limits.items():
        interval = result["interval"].sel(statistic=name).transpose("score", "bound").values
        assert (interval[:, 1] <= most).all()
        assert (interval[:, 0] >= (-1.0 if name == "cosine" else 0.0)).all()
    assert (result["interval"].sel(statistic="contrast") == 0.0).any()
    inside = found["centers"]["interval"].sel(statistic="contrast", score="all tokens").values
    assert 0.0 < inside[0] < inside[1] < 1.0
