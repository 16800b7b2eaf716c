import numpy as np
import pytest
from scipy import stats

from tests.stats.builders import made_up_tokens
from tokensense.stats.neutral import single_conditions
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample


def described(tokens):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    plan = Resampling(sample.clusters, 200, 0)
    return single_conditions(sample, pairs, terms=terms_of(sample, pairs), plan=plan, attrs={})


def test_values_are_those_of_the_tokens():
    tokens = made_up_tokens(problems=25, length=(3, 9))
    found = described(tokens)
    base = tokens.logp.values[0].astype(float)
    shift = tokens.logp.sel(condition="neutral.f0").values - base
    verdicts = [tokens.logp.values[i] - base for i in range(1, 5)]
    common = np.mean(verdicts, axis=0)
    clipped = [np.clip(z, *np.quantile(z, (0.01, 0.99))) for z in (shift, common)]
    p, square = np.exp(base), tokens.p_square_sum.values[0].astype(float)
    distance = np.sqrt((1 - p) ** 2 + np.clip(square - p**2, 0, (1 - p) ** 2))
    known = distance >= 1e-3
    expected = {
        "mean_shift": shift.mean(),
        "mean_absolute_shift": np.abs(shift).mean(),
        "mean_standardized_shift": np.mean(np.abs(shift)[known] / distance[known]),
        "shift_to_surprisal": stats.spearmanr(np.abs(shift), -base).statistic,
        "correlation_with_common": stats.pearsonr(*clipped).statistic,
        "rank_correlation_with_common": stats.spearmanr(shift, common).statistic,
    }
    assert found.condition.values.tolist() == ["neutral.f0"]
    for name, value in expected.items():
        assert found.estimate.sel(statistic=name).item() == pytest.approx(value, abs=1e-9), name
    assert (found.method == Method.BOOTSTRAP).all()
    assert found.n_rollouts.item() == tokens.sizes["rollout"]
    assert found.n_tokens.item() == tokens.sizes["token"]
    assert found.unit.sel(statistic="mean_shift").item() == "nats"


def test_only_rollouts_comparable_with_the_verdicts_too_are_used():
    tokens = made_up_tokens(problems=25, length=(3, 9))
    tokens.comparable.values[2, 0] = False  # a verdict condition
    tokens.comparable.values[-1, 1] = False  # the neutral one
    found = described(tokens)
    assert found.n_rollouts.item() == tokens.sizes["rollout"] - 2
    rest = described(tokens.isel(token=tokens.rollout.values > 1))
    np.testing.assert_allclose(found.estimate, rest.estimate)


def test_without_neutral_conditions_there_is_nothing():
    assert described(made_up_tokens(problems=5, neutral=False)) is None
