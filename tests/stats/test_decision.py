import itertools

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from tokensense.stats.decision import PRIMARY, decide, holm


def triple(name, *, estimate=0.5, error=0.1, interval=(0.3, 0.7), clusters=50, **attrs):
    """A result with one statistic, as the endpoints give it."""
    statistic, term = PRIMARY[name]
    dims = ("statistic", "term")
    return xr.Dataset(
        {
            "estimate": (dims, [[estimate]]),
            "error": (dims, [[error]]),
            "interval": ((*dims, "bound"), [[list(interval)]]),
            "n_clusters": (dims, [[clusters]]),
        },
        coords={"statistic": [statistic], "term": [term]},
        attrs={"statement": f"about {name}", "n_rollouts": 100, "n_tokens": 1000, **attrs},
    )


def read(rank, families=19):
    p = rank / (families + 1)
    return triple("read", rank=rank, p=p, smallest_p=1 / (families + 1), frames='["a", "b"]')


def told(word, **options):
    return triple("informative", word=word, **options)


REASONS = {name: f"why not {name}" for name in PRIMARY}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p):
    # p of a test is the largest Bonferroni p of any set of tests that holds it.
    sets = [
        subset
        for size in range(1, len(p) + 1)
        for subset in itertools.combinations(range(len(p)), size)
    ]
    slow = [
        min(1.0, max(len(s) * min(p[i] for i in s) for s in sets if one in s))
        for one in range(len(p))
    ]
    np.testing.assert_allclose(holm(p), slow)


def test_holm_counts_only_the_tests_that_were_made():
    np.testing.assert_allclose(holm([0.01, np.nan, 0.04, 0.03]), [0.03, np.nan, 0.06, 0.06])
    assert np.isnan(holm([np.nan])).all()


@pytest.mark.parametrize(
    ("rank", "word", "decision"),
    [
        (2, "informative", "placebo_like"),
        (1, "equivalent", "read_not_informative"),
        (1, "informative", "read_and_informative"),
        (1, "inconclusive", "inconclusive"),
        (1, "reversed", "inconclusive"),
        (1, "not_estimable", "inconclusive"),
        (1, None, "inconclusive"),
        (20, None, "placebo_like"),
    ],
)
def test_the_table(rank, word, decision):
    results = {"read": read(rank)}
    if word is not None:
        results["informative"] = told(word)
    found = decide(results, reasons=REASONS, attrs={})
    assert found.attrs["word"] == decision


def test_without_a_rank_nothing_is_decided():
    results = {"read": triple("read", estimate=np.nan, interval=(np.nan, np.nan))}
    found = decide(results | {"informative": told("informative")}, reasons=REASONS, attrs={})
    assert found.attrs["word"] == "not_estimable"
    assert np.isnan(found.p.sel(endpoint="read"))


@pytest.mark.parametrize(("clusters", "word"), [(7, "not_estimable"), (8, "inconclusive")])
def test_a_rank_of_a_few_problems_is_no_word(clusters, word):
    few = triple("read", clusters=clusters, rank=1, p=0.05, smallest_p=0.05)
    found = decide({"read": few}, reasons=REASONS, attrs={})
    assert found.attrs["word"] == word
    assert ("fewer than 8 problem texts" in found.attrs["statement"]) == (clusters < 8)
    assert found.p[0] == 0.05  # the rank itself is exact


def test_p_holm_and_counts_stand_beside_each_endpoint():
    results = {
        "read": read(1),
        "informative": told("informative", estimate=0.62, error=0.04),
        "beyond": triple("beyond", p=0.2, redundant=0),
    }
    attrs = {"scored_by": "model", "sampled_by": "others"}
    found = decide(results, reasons=REASONS, attrs=attrs)
    p = [0.05, 2 * t.sf(3.0, 49), 0.2]
    np.testing.assert_allclose(found.p[:3], p)
    np.testing.assert_allclose(found.p_holm[:3], holm(p))
    assert found.smallest_p[0] == 0.05
    assert found.attrs["tests"] == 3
    assert found.attrs["smallest_p_holm"] == pytest.approx(0.15)
    assert found.attrs["family"] == 'scored by model, sampled by others, frames ["a", "b"]'
    assert found.n_tokens[0] == 1000
    assert found.statement.values[1] == "informative, about informative"


def test_what_is_not_there_is_said():
    found = decide({"read": read(1)}, reasons=REASONS, attrs={})
    assert found.statement.values[1:].tolist() == [
        "not estimable: why not informative",
        "not estimable: why not beyond",
        "not estimable: why not drives",
    ]
    assert (found.n_clusters[1:] == -1).all()
    assert found.attrs["redundant"] == "not_estimable"


def test_an_endpoint_that_is_not_estimable_is_no_test():
    results = {"read": read(1), "informative": told("not_estimable")}
    found = decide(results, reasons=REASONS, attrs={})
    assert found.attrs["tests"] == 1
    assert found.p_holm.values[0] == 0.05
    assert found.estimate.values[1] == 0.5  # a description all the same


@pytest.mark.parametrize("flag", [0, 1])
def test_redundancy_is_a_flag_beside_the_word(flag):
    results = {"read": read(1), "beyond": triple("beyond", p=0.5, redundant=flag)}
    found = decide(results, reasons=REASONS, attrs={})
    assert found.attrs["redundant"] == flag
    assert ("(redundant)" in found.attrs["statement"]) == bool(flag)


def test_the_fourth_endpoint_has_its_place():
    results = {"read": read(1), "drives": triple("drives", p=0.001)}
    found = decide(results, reasons=REASONS, attrs={})
    assert found.p_holm.sel(endpoint="drives").item() == pytest.approx(0.002)
