"""CSCR against its published vectors, a slow reference, and controls dealt by hand."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.credit.builders import LIBRARIES, arrays, evidence, made_up
from tests.reference import credit as slow
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.credit.cscr import Cscr
from tokensense.errors import SchemaError
from tokensense.segments import segment_max, segment_min

# methods/cscr.md section 6, rounded there to six digits.
Z_POS = [0.01, 0.4, 0.02, -0.7, 0.0, -0.05]
Z_NEG = [0.005, 0.25, -0.05, -0.4, -0.002, 0.08]
LOGP = [-0.02, -1.5, -0.3, -2.2, -0.01, -0.7]
WEIGHTS = {
    (0.2, 1.0): [1.027497, 0.966810, 1.027497, 0.929277, 1.027497, 1.021423],
    (0.5, 1.0): [1.071698, 0.913456, 1.071698, 0.815587, 1.071698, 1.055862],
    (1.0, 1.0): [1.154472, 0.813543, 1.154472, 0.602687, 1.154472, 1.120353],
    (-0.2, 1.0): [0.973937, 1.031460, 0.973937, 1.067036, 0.973937, 0.979694],
    (0.2, 0.05): [1.088940, 0.871351, 1.088940, 0.871153, 1.088940, 0.990677],
}
SURPRISAL_WEIGHTS = [1.057481, 0.923790, 1.057481, 0.884622, 1.057481, 1.019144]
SCORES = {
    "cscr_surprisal": lambda e: -e["logp"],
    "cscr_entropy": lambda e: e["entropy"],
    "cscr_gradient_norm": lambda e: e["distance"],
    "cscr_common": lambda e: np.abs(e["z_pos"] + e["z_neg"]),
    "cscr_contrast": lambda e: np.abs(e["z_pos"] - e["z_neg"]),
    "cscr_placebo": lambda e: np.maximum(np.abs(e["placebo_pos"]), np.abs(e["placebo_neg"])),
}
CONTROLS = [*SCORES, "cscr_shuffled"]


def told(**more):
    return {
        "length": np.array([6]),
        "advantage": np.array([1.0]),
        "z_pos": np.array(Z_POS),
        "z_neg": np.array(Z_NEG),
        **more,
    }


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("gamma", "tau"), WEIGHTS)
def test_the_written_vectors(library, gamma, tau):
    rule = adjusted(CATALOGUE["cscr"], gamma=gamma, tau=tau, threshold=0.05)
    weights = weights_of(rule, evidence(told(), library))
    np.testing.assert_allclose(weights, WEIGHTS[gamma, tau], atol=6e-7)


def test_the_vector_of_surprisal_in_the_place_of_s():
    weights = Cscr(threshold=0.5).attenuated(-np.array(LOGP), np.array([6]))
    np.testing.assert_allclose(weights, SURPRISAL_WEIGHTS, atol=6e-7)


def test_the_vectors_of_the_file(shared):
    found = json.loads((shared / "methods/vectors/cscr.json").read_text())
    cases = [name for name in found if name.startswith("cscr_lam")]
    assert len(cases) == 5
    shifts = told(z_pos=np.array(found["z_pos"]), z_neg=np.array(found["z_neg"]))
    for name in cases:
        threshold, gamma, tau = (
            float(part.lstrip("lamgtu")) for part in name.removeprefix("cscr_").split("_")
        )
        rule = adjusted(CATALOGUE["cscr"], gamma=gamma, tau=tau, threshold=threshold)
        weights = weights_of(rule, evidence(shifts))
        np.testing.assert_allclose(weights, found[name]["w"], atol=6e-7, err_msg=name)
        # Weights are a over its mean, so that a is a weight over the weight of a spared token.
        np.testing.assert_allclose(weights / weights[0], found[name]["a"], atol=2e-6)
    surprisal = Cscr(threshold=0.5).attenuated(-np.array(found["base"]), np.array([6]))
    np.testing.assert_allclose(surprisal, found["surprisal_g0.2_lam0.5"], atol=6e-7)


@given(
    found=made_up(),
    gamma=st.sampled_from([-1.0, -0.2, 0.0, 0.2, 0.5, 1.0]),
    threshold=st.sampled_from([0.0, 0.05, 0.25, 3.0]),
    tau=st.sampled_from([0.05, 1.0, 4.0]),
)
@settings(max_examples=25)
def test_loops_give_the_same_weights_and_they_fall_with_s(found, gamma, threshold, tau):
    own = np.maximum(np.abs(found["z_pos"]), np.abs(found["z_neg"]))
    length = found["length"]
    rule = adjusted(CATALOGUE["cscr"], gamma=gamma, threshold=threshold, tau=tau)
    expected = slow.cscr(own.tolist(), length.tolist(), gamma=gamma, threshold=threshold, tau=tau)
    for library in LIBRARIES:
        weights = np.asarray(weights_of(rule, evidence(found, library)))
        np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)
    start = 0
    for count in length:
        part = slice(start, start + count)
        ordered = weights[part][np.argsort(own[part])]
        assert (np.diff(ordered) * (1 if gamma > 0 else -1) <= 1e-12).all()
        start += count
    # (1 - gamma) max <= w <= max within a rollout.
    if gamma > 0 and length.sum():
        low, high = segment_min(weights, length), segment_max(weights, length)
        filled = length > 0
        assert (low[filled] >= (1 - gamma) * high[filled] - 1e-12).all()


@pytest.mark.parametrize("name", CONTROLS)
@given(found=made_up())
@settings(max_examples=12)
def test_a_control_has_the_very_weights_of_cscr_in_each_rollout(name, found):
    own = weights_of(adjusted(CATALOGUE["cscr"], gamma=0.7), evidence(found))
    dealt = weights_of(adjusted(CATALOGUE[name], gamma=0.7), evidence(found))
    bounds = np.cumsum(found["length"])[:-1] if found["length"].size else []
    for one, other in zip(np.split(own, bounds), np.split(dealt, bounds), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())


@pytest.mark.parametrize("name", SCORES)
@given(found=made_up())
@settings(max_examples=12)
def test_loops_deal_the_same_way(name, found):
    own = np.maximum(np.abs(found["z_pos"]), np.abs(found["z_neg"])).tolist()
    length = found["length"].tolist()
    weights = weights_of(CATALOGUE["cscr"], evidence(found)).tolist()
    expected = slow.dealt(weights, own, SCORES[name](found).tolist(), length)
    for library in LIBRARIES:
        weights = np.asarray(weights_of(CATALOGUE[name], evidence(found, library)))
        np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_the_least_likely_token_gets_the_smallest_weight():
    # s ranks tokens 4, 1, 5, 2, 0, 4 from large to small; surprisal 3, 1, 5, 2, 0, 4
    logp = np.array([-3.0, -0.1, -0.2, -0.3, -2.0, -1.0])
    found = evidence(told(logp=logp))
    large_first = sorted(weights_of(CATALOGUE["cscr"], found).tolist())
    weights = weights_of(CATALOGUE["cscr_surprisal"], found)
    assert weights[[0, 4, 5]].tolist() == large_first[:3]


def test_upweighting_goes_to_the_same_tokens():
    found = evidence(told(logp=np.array([-3.0, -0.1, -0.2, -0.3, -2.0, -1.0])))
    weights = weights_of(adjusted(CATALOGUE["cscr_surprisal"], gamma=-0.2), found)
    assert weights.argmax() == 0


def test_a_shuffle_depends_on_seed_and_key_alone():
    found = arrays([30, 30], seed=1)
    found["z_pos"][30:], found["z_neg"][30:] = found["z_pos"][:30], found["z_neg"][:30]
    rule = CATALOGUE["cscr_shuffled"]
    one = weights_of(rule, evidence(found))
    assert one[:30].tolist() != one[30:].tolist()  # another key, another order
    alike = weights_of(rule, evidence(found | {"key": np.array([4, 4])}))
    assert alike[:30].tolist() == alike[30:].tolist()
    again = weights_of(rule, evidence(found, "torch"))
    np.testing.assert_allclose(again, one, rtol=1e-12)
    assert weights_of(adjusted(rule, seed=1), evidence(found)).tolist() != one.tolist()


def test_every_order_of_a_shuffle_is_as_likely():
    # 2,000 rollouts of three tokens that lose differently: the loser stands anywhere equally often.
    count = 2000
    shift = np.tile([0.0, 0.0, 5.0], count)
    found = {
        "length": np.full(count, 3), "advantage": np.ones(count), "key": np.arange(count),
        "z_pos": shift, "z_neg": shift,
    }  # fmt: skip
    weights = weights_of(CATALOGUE["cscr_shuffled"], evidence(found)).reshape(count, 3)
    share = np.bincount(weights.argmin(axis=1), minlength=3) / count
    np.testing.assert_allclose(share, 1 / 3, atol=4 * math.sqrt(2 / 9 / count))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_quantile_of_all_tokens_is_the_threshold(library):
    # s of both rollouts: 0, 1, 2, 3, 4; its median is 2, so that tokens 3 and 4 lose.
    found = {
        "length": np.array([2, 3]), "advantage": np.ones(2),
        "z_pos": np.array([0.0, -1.0, 2.0, 3.0, -4.0]), "z_neg": np.zeros(5),
    }  # fmt: skip
    weights = np.asarray(
        weights_of(adjusted(CATALOGUE["cscr"], quantile=0.5), evidence(found, library))
    )
    a = np.array([1.0, 1 - 0.2 * (1 - math.exp(-1)), 1 - 0.2 * (1 - math.exp(-2))])
    np.testing.assert_allclose(weights, [1, 1, *(3 * a / a.sum())], rtol=1e-12)


@pytest.mark.parametrize("setting", [{"threshold": math.inf}, {"tau": math.inf}])
@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_is_above_an_infinite_threshold(setting, library):
    rule = adjusted(CATALOGUE["cscr"], **setting)
    assert weights_of(rule, evidence(told(), library)).tolist() == [1.0] * 6


def test_equal_sensitivity_is_uniform():
    found = told(z_pos=np.full(6, 0.3), z_neg=np.full(6, -0.4))
    np.testing.assert_allclose(weights_of(CATALOGUE["cscr"], evidence(found)), 1, rtol=1e-15)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"gamma": 1.1}, "`gamma` needs a value in"),
        ({"gamma": -1.1}, "`gamma` needs a value in"),
        ({"threshold": -0.1}, "`threshold` needs a value in"),
        ({"tau": 0.0}, "`tau` needs a value in"),
        ({"quantile": 1.5}, "`quantile` needs a value in"),
        ({"quantile": 0.8, "threshold": 0.1}, "one of them alone; they are 0.1 and 0.8"),
    ],
)
def test_settings_out_of_range_are_refused(setting, said):
    with pytest.raises(SchemaError, match=said):
        adjusted(CATALOGUE["cscr"], **setting)


def test_torch_keeps_its_device_and_no_numpy_is_handed_back():
    weights = weights_of(CATALOGUE["cscr_shuffled"], evidence(arrays([3, 2]), "torch"))
    assert isinstance(weights, torch.Tensor)
