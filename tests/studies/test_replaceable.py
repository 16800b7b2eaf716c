"""The measures of the study: no bias where nothing differs, and the 2 x 2 adds up."""

import numpy as np
import pandas as pd
import pytest

from studies.replaceable import TINY, excess_variation, main, matched, spread, variation


def test_variation_of_known_samples():
    assert variation(["a", "a"], ["a", "a", "a"]) == 0
    assert variation(["a", "a"], ["b"]) == 1
    assert variation(["a", "b"], ["a", "a", "a", "b"]) == pytest.approx(0.25)


def test_equal_distributions_exceed_chance_by_nothing_on_average():
    rng = np.random.default_rng(0)
    found = [
        excess_variation(rng.choice(list("abcdefgh"), 32), rng.choice(list("abcdefgh"), 64), rng)
        for _ in range(200)
    ]
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(200)
    apart = excess_variation(["a"] * 32, ["b"] * 32, rng)
    assert apart > 0.8


def test_noise_alone_spreads_by_nothing_on_average_where_the_plain_range_would():
    rng = np.random.default_rng(0)
    halves = rng.binomial(16, 0.5, (2000, 2, 3)) / 16
    found = np.array([spread(half) for half in halves])
    assert abs(found.mean()) < 4 * found.std() / np.sqrt(2000)
    assert np.ptp(halves.mean(1), axis=1).mean() > 0.1
    assert spread(np.array([[0.1, 0.9], [0.2, 0.8]])) == pytest.approx(0.7)


def test_each_attenuated_token_has_its_nearest_neighbor_and_none_twice():
    tokens = pd.DataFrame(
        {
            "rollout": [0] * 6 + [1],
            "forced": [False] * 5 + [True, False],
            "attenuated": [True, True, False, False, False, False, True],
            "surprisal": [2.0, 1.9, 1.8, 0.5, 3.0, 2.0, 1.0],
        }
    )
    assert matched(tokens).to_numpy().nonzero()[0].tolist() == [2, 4]


@pytest.mark.slow
def test_the_study_runs_and_its_cells_add_up(tmp_path):
    table = main(TINY, policy_name="tiny:mixed", out=tmp_path)
    cells = table[~table["group"].str.startswith("row")].groupby("group")["estimate"].sum()
    np.testing.assert_allclose(cells, 1.0)
    tokens = pd.read_csv(tmp_path / "tokens.csv")
    assert not (tokens["forced"] & (tokens["replaceable"] | tokens["useful"])).any()
    assert tokens["matched"].sum() <= tokens["attenuated"].sum()
