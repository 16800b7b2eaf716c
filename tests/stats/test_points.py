import json

import numpy as np
import pytest

from tests.figures.builders import FRAMES, WORDS, flat_tokens
from tokensense.errors import StatisticsError
from tokensense.stats.describe import describe
from tokensense.stats.points import shift_points


def test_each_verdict_pair_has_a_placebo_pair_of_its_frame_and_families_take_turns():
    found = shift_points(flat_tokens(rollouts=4))
    assert found["term"].values.tolist() == ["verdict"] * 2 + ["placebo"] * 2
    assert found["frame"].values.tolist() == sorted(FRAMES) * 2
    assert found["family"].values.tolist() == ["verdict", "verdict", "color", "day"]


def test_points_are_the_shifts_of_the_pair():
    tokens = flat_tokens(rollouts=4)
    found = shift_points(tokens)
    logp = tokens["logp"].set_index(condition="condition")
    for level, name in (("pos", "positive"), ("neg", "negative")):
        expected = logp.sel(condition=f"day/review/{level}") - logp.sel(condition="base")
        np.testing.assert_allclose(found[name].values[3], expected.values, atol=1e-6)


def test_rollouts_that_a_pair_cannot_use_are_nan_there_and_only_there():
    tokens = flat_tokens(rollouts=4)
    tokens["comparable"][tokens["condition"].values.tolist().index("verdict/note/neg"), 1] = False
    found = shift_points(tokens)
    own = tokens["rollout"].values == 1
    for name in ("positive", "negative"):
        lost = np.isnan(found[name].values)
        assert lost[0].tolist() == own.tolist()
        assert not lost[1:].any()


def test_attributes_agree_with_those_of_the_results():
    tokens = flat_tokens(rollouts=9)
    found, result = shift_points(tokens).attrs, describe(tokens, resamples=100)["triple"].attrs
    for name in ("verdict_pairs", "placebo_families", "all_tokens", "scored_by"):
        assert found[name] == result[name]
    assert json.loads(found["placebo_families"]) == sorted(set(WORDS) - {"verdict"})


def test_without_a_placebo_there_is_nothing_to_put_beside_the_verdict():
    tokens = flat_tokens(rollouts=4)
    tokens = tokens.isel(condition=tokens["probe"].values != "placebo")
    with pytest.raises(StatisticsError, match=r"placebo pair beside the verdict; there are .*note"):
        shift_points(tokens)
