import numpy as np
import pytest
import xarray as xr

from tests.stats.builders import made_up_tokens
from tokensense.stats.pairs import pairs_of
from tokensense.stats.resampling import Resampling
from tokensense.stats.sample import read_sample
from tokensense.stats.tone import CELLS, crossed_pairs, outcome_and_tone


def crossed(*, outcome=0.0, tone=0.0, interaction=0.0, noise=0.0, frames=2, seed=0):
    """Tokens under a 2 x 2 of planted effects."""
    tokens = made_up_tokens(problems=12, length=(3, 6), frames=frames, families=1)
    rng = np.random.default_rng(seed)
    base = tokens.logp[0].values
    names, rows = [], []
    for frame in range(frames):
        for level, side in (("pos", 1), ("neg", -1)):
            for name, mood in (("praise", 1), ("blame", -1)):
                names.append((level, f"f{frame}", name))
                shift = side * outcome + mood * tone + side * mood * interaction
                rows.append(base + shift + noise * rng.normal(size=base.size))
    labels = {
        "condition": [f"ot-{i}" for i in range(len(names))],
        "probe": ("condition", ["outcome_tone"] * len(names)),
        "family": ("condition", ["verdict"] * len(names)),
        "level": ("condition", [name[0] for name in names]),
        "frame": ("condition", [name[1] for name in names]),
        "wording": ("condition", ["w0"] * len(names)),
        "tone": ("condition", [name[2] for name in names]),
        "placement": ("condition", ["user_end"] * len(names)),
    }
    more = tokens.isel(condition=[0] * len(names)).assign_coords(labels)
    more["logp"] = (("condition", "token"), np.array(rows, np.float32))
    return xr.concat(
        [tokens, more],
        "condition",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
    )


def result(tokens):
    sample = read_sample(tokens)
    plan = Resampling(sample.clusters, 200, 0)
    return outcome_and_tone(sample, pairs_of(sample), plan=plan, attrs={})


def test_planted_effects_come_back_with_their_signs():
    found = result(crossed(outcome=0.2, tone=-0.1, interaction=0.05))
    at = found.estimate
    np.testing.assert_allclose(at.sel(statistic="mean"), [0.2, -0.1, 0.05], atol=1e-5)
    np.testing.assert_allclose(at.sel(statistic="mean_absolute"), [0.2, 0.1, 0.05], atol=1e-5)
    squares = np.array([0.2, 0.1, 0.05]) ** 2
    np.testing.assert_allclose(at.sel(statistic="share"), squares / squares.sum(), rtol=1e-3)


def test_effects_are_those_of_a_regression_on_effect_codes():
    from scipy.linalg import lstsq

    codes = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]).T
    z = np.random.default_rng(0).normal(size=4)  # right praise, wrong praise, right blame, ...
    np.testing.assert_allclose(CELLS @ z, lstsq(codes, z)[0][1:])


def test_shares_of_noise_are_alike_and_add_up_to_one():
    found = result(crossed(noise=0.3)).estimate.sel(statistic="share")
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, 1 / 3, atol=0.1)


def test_each_pair_meets_its_twin():
    sample = read_sample(crossed(frames=2))
    twins = crossed_pairs(pairs_of(sample))
    assert [(a.tone, b.tone, a.frame == b.frame) for a, b in twins] == [
        ("praise", "blame", True)
    ] * 2


def test_without_crossed_conditions_there_is_none():
    assert result(made_up_tokens(problems=9)) is None


def test_no_effect_has_no_shares():
    found = result(crossed())
    assert (found.estimate.sel(statistic="mean_absolute") < 1e-6).all()
    exact = crossed()
    exact.logp[:] = exact.logp[0].values
    found = result(exact)
    assert np.isnan(found.estimate.sel(statistic="share")).all()
    assert (found.estimate.sel(statistic="mean") == 0).all()
