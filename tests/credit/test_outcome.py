"""Rules of outcome, by hand, against the written vectors, and against scipy."""

import json
import math

import numpy as np
import pytest
from scipy.stats import fisher_exact

from tests.credit.builders import LIBRARIES, arrays, evidence
from tests.credit.vectors import credit
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.credit.outcome import Oar, fisher_p
from tokensense.errors import SchemaError

OAR_SCORE = [0.0, 0.4, 0.1, 1.2, 0.0, 0.3]
OAR_SHAPED = [0.1, 1.408884, 1.093487, 2.0, 0.1, 1.311964]
OAR = [0.099762, 1.405526, 1.090880, 1.995233, 0.099762, 1.308837]
libraries = pytest.mark.parametrize("library", LIBRARIES)


@libraries
def test_every_step_gets_the_same_credit(library):
    # steps of 1, 3 and 2 tokens, the last two in no step; six tokens: 2 a step
    found = credit("step", library, step=[0, 1, 1, 1, -1, -1])
    np.testing.assert_allclose(found, [2, 2 / 3, 2 / 3, 2 / 3, 1, 1], rtol=1e-12)


def test_steps_of_another_rollout_are_others():
    told = {
        "length": np.array([2, 1]), "advantage": np.array([1.0, 1.0]), "step": np.array([0, 1, 1]),
    }  # fmt: skip
    assert weights_of(CATALOGUE["step"], evidence(told)).tolist() == [1, 1, 1]


def test_random_weights_are_exponential_and_depend_on_seed_and_key_alone():
    found = {
        "length": np.full(200, 50), "advantage": np.ones(200), "key": np.arange(200),
    }  # fmt: skip
    weights = weights_of(CATALOGUE["random"], evidence(found))
    # Of an exponential law, e^-1 lies above the mean; the mean square is 2.
    assert (weights > 1).mean() == pytest.approx(math.exp(-1), abs=0.02)
    assert (weights**2).mean() == pytest.approx(2, rel=0.05)
    again = weights_of(CATALOGUE["random"], evidence(found | {"key": np.arange(200)[::-1].copy()}))
    np.testing.assert_array_equal(again[:50], weights[-50:])
    other = weights_of(adjusted(CATALOGUE["random"], seed=1), evidence(found))
    assert not np.array_equal(other, weights)


# Advantages 1, 2, -1, 0 over 2, 3, 2 and 1 tokens: masses 8 and 2.
PLANTED = {
    "length": np.array([2, 3, 2, 1]),
    "advantage": np.array([1.0, 2.0, -1.0, 0.0]),
    "planted": np.array([True, False, False, True, False, True, False, True]),
}


@libraries
@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        # planted mass 1 + 2 of 8: weight 8/3, nothing left; of the wrong side 1 of 2: weight 2
        (50.0, [8 / 3, 0, 0, 8 / 3, 0, 2, 0, 1]),
        # capped at 2: 6 of 8, the other 2 over 1 + 4
        (2.0, [2, 0.4, 0.4, 2, 0.4, 2, 0, 1]),
        (1.0, [1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_oracle_puts_all_credit_of_a_side_on_its_planted_tokens(library, cap, expected):
    rule = adjusted(CATALOGUE["oracle"], cap=cap)
    weights = weights_of(rule, evidence(PLANTED, library))
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)


def test_a_side_without_planted_tokens_is_uniform():
    told = PLANTED | {"planted": np.array([True] + [False] * 7)}
    weights = weights_of(CATALOGUE["oracle"], evidence(told))
    assert weights[5:].tolist() == [1, 1, 1]
    assert weights[0] == pytest.approx(8)


def test_vine_gives_the_gain_itself():
    assert credit("vine", advantage=-3.0, value_gain=[0.25, 0.25, -0.5]).tolist() == [
        0.25, 0.25, -0.5
    ]  # fmt: skip


def test_span_drop_by_hand():
    # i = 0, .5, 1 of the way from -.2 to .6, into [.5, 1]: .5 + 1.5 i
    raw = np.array([0.5 + 1.5 * i for i in (0.5, 0.75, 1.0)])
    found = credit("span_drop", span_drop=[-0.2, 0.2, 0.6])
    np.testing.assert_allclose(found, 3 * raw / raw.sum(), rtol=1e-12)
    assert credit("span_drop", span_drop=[0.0, 0.0]).tolist() == [1, 1]


@libraries
def test_oar(library):
    for name, reads in (("oar_p", "answer_kl"), ("oar_g", "answer_saliency")):
        np.testing.assert_allclose(credit(name, library, **{reads: OAR_SCORE}), OAR, atol=6e-7)
    found = evidence(arrays([6]), library)
    shaped = Oar().shaped(LIBRARIES[library](np.array(OAR_SCORE)), found)
    np.testing.assert_allclose(shaped, OAR_SHAPED, atol=6e-7)


def test_oar_of_the_file(shared):
    vectors = json.loads((shared / "methods/vectors/cscr.json").read_text())["oar"]
    shaped = Oar().shaped(np.array(vectors["scores"]), evidence(arrays([6])))
    np.testing.assert_allclose(shaped, vectors["w"], atol=6e-7)
    found = credit("oar_p", answer_kl=vectors["scores"])
    np.testing.assert_allclose(found, vectors["w_norm"], atol=6e-7)


def test_oar_without_differences_is_uniform():
    assert credit("oar_p", answer_kl=[0.3, 0.3]).tolist() == [1, 1]
    # all but the highest are equal: the quantile is 0 and nothing lies below it
    np.testing.assert_allclose(credit("oar_p", answer_kl=[0, 0, 0, 0, 1.0]), np.array(
        [1, 1, 1, 1, 2]) / 1.2, rtol=1e-12)  # fmt: skip


def test_nthr_spares_wrong_tokens_that_look_right():
    # right means .5 and 2: the threshold is .5; accuracy 2 of 3: spared tokens keep 1/3
    told = {
        "length": np.array([2, 1, 3, 2]),
        "advantage": np.array([1.0, 1.0, -2.0, -1.0]),
        "group": np.array([4, 4, 4, 5]),
        "right_influence": np.array([0.0, 1.0, 2.0, 0.4, 0.5, 0.6, 9.0, 9.0]),
    }
    weights = weights_of(CATALOGUE["nthr"], evidence(told))
    # The other group has no right response, so that nothing is like one.
    np.testing.assert_allclose(weights, [1, 1, 1, 1, 1, 1 / 3, 1, 1], rtol=1e-12)
    stricter = weights_of(adjusted(CATALOGUE["nthr"], beta=2.0), evidence(told))
    assert stricter.tolist() == [1] * 8


def test_fisher_is_that_of_scipy():
    for a, b, c, d in np.random.default_rng(3).integers(0, 6, (60, 4)).tolist():
        if a + b + c + d:
            expected = fisher_exact([[a, b], [c, d]]).pvalue
            assert fisher_p([[a, b], [c, d]]) == pytest.approx(expected, rel=1e-9)


def test_ktae_by_hand():
    # Token 5 is in both right responses and in no wrong one; 6 the other way; 7 in all.
    told = {
        "length": np.array([3, 2, 2, 2]),
        "advantage": np.array([1.0, 1.0, -1.0, -1.0]),
        "group": np.zeros(4, np.int64),
        "token_id": np.array([5, 7, 5, 5, 7, 6, 7, 6, 7]),
    }
    found = CATALOGUE["ktae"].assign(evidence(told))
    # p = 2 / 6 of six tables; a gain of one bit: k = (1 - 1/3 + 1) / 2 = 5/6
    key = 0.5 * 5 / 6
    expected = [1 + key, 1, 1 + key, 1 + key, 1, -1 - key, -1, -1 - key, -1]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("oracle", {"cap": 0.5}), ("span_drop", {"slope": -1.0}), ("oar_p", {"quantile": 1.5}),
        ("oar_p", {"beta": -1.0}), ("oar_g", {"least": 2.0}), ("nthr", {"beta": -1.0}),
        ("ktae", {"strength": -1.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        credit(name, settings=setting, answer_kl=[0.0])
