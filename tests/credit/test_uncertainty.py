"""Rules of probability and entropy against the written vectors and by hand."""

import json
import math

import numpy as np
import pytest

from tests.credit.builders import LIBRARIES, evidence
from tests.credit.vectors import ENTROPY, LOGP, credit
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.errors import SchemaError

AR = [0.996040, 0.844626, 0.948164, 0.822161, 0.998010, 0.899317]
GTPO = [0.911650, 1.086408, 0.958252, 1.133010, 0.905825, 1.004854]
libraries = pytest.mark.parametrize("library", LIBRARIES)


@libraries
def test_the_written_vectors(library):
    np.testing.assert_allclose(credit("ar", library, logp=LOGP), AR, atol=6e-7)
    np.testing.assert_allclose(credit("gtpo", library, entropy=ENTROPY), GTPO, atol=6e-7)
    # threshold 1.6, linear, with it: tokens 2 and 4
    assert credit("high_entropy", library, entropy=ENTROPY).tolist() == [0, 1, 0, 1, 0, 0]


def test_the_vectors_of_the_file(shared):
    found = json.loads((shared / "methods/vectors/cscr.json").read_text())
    np.testing.assert_allclose(credit("ar", logp=found["base"]), found["ar_a0.2"], atol=6e-7)
    np.testing.assert_allclose(credit("gtpo", entropy=found["H"]), found["gtpo_b0.1"], atol=6e-7)


def test_gtpo_cuts_at_zero_and_keeps_the_mean():
    found = credit("gtpo", entropy=[0.0, 0.0, 3.0], settings={"beta": 2.0})
    assert found.tolist() == [0, 0, 3]


@libraries
def test_gtpo_of_a_group_shares_each_position(library):
    # positions of group 0: entropies 1 and 3, 2 and 2, 5 alone; group 1 has its own
    told = {
        "length": np.array([3, 2, 1]),
        "advantage": np.array([1.0, -1.0, 1.0]),
        "group": np.array([0, 0, 1]),
        "entropy": np.array([1.0, 2.0, 5.0, 3.0, 2.0, 7.0]),
    }
    weights = weights_of(CATALOGUE["gtpo_group"], evidence(told, library))
    np.testing.assert_allclose(weights, [0.5, 1, 1, 1.5, 1, 1], rtol=1e-12)


@libraries
def test_dgpo_by_hand(library):
    s = np.array([0.3 * 0.25, 0.1 * 1.0])
    told = {"hellinger": [0.3, 0.1], "entropy": [0.25 * math.log(100), 2 * math.log(100)]}
    found = credit("dgpo", library, settings={"vocabulary": 100}, **told)
    e = np.exp(s / 0.5)
    np.testing.assert_allclose(found, 2 * e / e.sum(), rtol=1e-12)


# Ten tokens of two responses; surprisal 1 ... 10.
TEN = {
    "length": np.array([5, 5]),
    "advantage": np.array([1.0, -1.0]),
    "logp": -np.arange(1.0, 11.0),
    "entropy": np.full(10, 0.2),
}


def weights(name, library="numpy", *, told=TEN, **settings):
    rule = adjusted(CATALOGUE[name], **settings)
    return np.asarray(weights_of(rule, evidence(told, library))).tolist()


@libraries
def test_stare_acts_on_the_rarest_tokens_of_each_side_where_the_policy_is_sure(library):
    assert weights("stare", library) == [1, 1, 1, 1, 1.1, 1, 1, 1, 1, 0.9]
    assert weights("stare", library, gate=0.2) == [1] * 10
    # the upper 40 %: quantile .6 of five is 3.4
    assert weights("stare", library, share=0.4, down=1.0) == [1, 1, 1, 1.1, 1.1, 1, 1, 1, 1, 1]


@libraries
def test_a3po_turns_with_the_sign_of_the_advantage(library):
    assert weights("a3po", library) == [1, 1, 1, 1, 2, 2, 1, 1, 1, 1]
    silent = TEN | {"advantage": np.array([0.0, 0.0])}
    assert weights("a3po", library, told=silent) == [1] * 10


@libraries
def test_covariance_by_hand(library):
    logp, advantage = TEN["logp"], np.repeat([1.0, -1.0], 5)
    c = (logp - logp.mean()) * (advantage - advantage.mean())
    raw = np.exp(-(c**2) / (2 * c.var()))
    found = weights("covariance", library)
    np.testing.assert_allclose(found, raw / raw.mean(), rtol=1e-12)


def test_tr_grpo_rises_with_probability_between_its_bounds():
    found = np.array(weights("tr_grpo", told=TEN | {"logp": np.linspace(-9.0, 0.0, 10)}))
    assert (np.diff(found) > 0).all()
    assert found[0] == pytest.approx(0.5, abs=1e-3)
    assert found[-1] == pytest.approx(4 * (1 / (1 + math.exp(-1)) - 0.375), rel=1e-12)
    assert weights("tr_grpo", told=TEN | {"logp": np.zeros(10)}, slope=40.0) == [1.5] * 10


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("high_entropy", {"share": 0.0}), ("gtpo", {"beta": -1.0}), ("ar", {"alpha": 1.5}),
        ("dgpo", {"tau": 0.0}), ("dgpo", {"kappa": -1.0}), ("dgpo", {"vocabulary": 1}),
        ("stare", {"gate": -1.0}), ("stare", {"share": 2.0}), ("stare", {"up": 0.5}),
        ("stare", {"down": 1.5}), ("a3po", {"share": 2.0}), ("a3po", {"factor": 0.5}),
        ("covariance", {"width": 0.0}), ("tr_grpo", {"low": 1.5}), ("tr_grpo", {"high": 0.5}),
        ("tr_grpo", {"tau": 0.0}), ("tr_grpo", {"slope": -1.0}), ("tr_grpo", {"middle": 2.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        credit(name, settings=setting, entropy=[0.0])
