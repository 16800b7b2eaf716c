"""Rules that do more than multiply, by hand and by plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from tests.credit.builders import LIBRARIES, evidence, made_up
from tests.reference import credit as slow
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted
from tokensense.errors import SchemaError

libraries = pytest.mark.parametrize("library", LIBRARIES)


def assigned(name, told, library="numpy", **changed):
    return np.asarray(adjusted(CATALOGUE[name], **changed).assign(evidence(told, library)))


GROUP = {
    "length": np.array([2, 2]),
    "advantage": np.array([2.0, -1.0]),
    "group": np.array([3, 3]),
    "entropy": np.array([1.0, 1.0, 1.0, 3.0]),
    "drift": np.array([0.5, 2.0, 1.5, 2.0]),
}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@libraries
def test_erpo_by_hand(library):
    # entropies: mean 1.5, deviation root .75; drift of the first halves .5 and 1.5, of the second
    # 2 and 2, which do not vary
    low, high = (sigmoid(5 * z / math.sqrt(0.75)) for z in (-0.5, 1.5))
    expected = [low * (2 + 0.2 * -1), low * 2, low * (-1 - 0.2 * 1), high * -1]
    np.testing.assert_allclose(assigned("erpo", GROUP, library), expected, rtol=1e-12)


@libraries
def test_ep_grpo_measures_progress_by_entropy(library):
    # C = 1/2, 1 | 1/4, 1: of ten parts 5, 9 | 2, 9: the first tokens stand alone
    low, high = (sigmoid(5 * z / math.sqrt(0.75)) for z in (-0.5, 1.5))
    found = assigned("ep_grpo", GROUP, library)
    np.testing.assert_allclose(found, [low * 2, low * 2, -low, -high], rtol=1e-12)
    together = assigned("ep_grpo", GROUP, library, parts=1)
    z = (GROUP["drift"] - 1.5) / GROUP["drift"].std()
    expected = np.array([low, low, low, high]) * (
        np.array([2, 2, -1, -1]) + 0.2 * np.array([1, 1, -1, -1]) * z
    )
    np.testing.assert_allclose(together, expected, rtol=1e-12)


@libraries
def test_lampo_pays_less_where_the_policy_was_sure_already(library):
    told = {
        "length": np.array([2, 1, 1]),
        "advantage": np.array([1.0, -1.0, 0.0]),
        "group": np.array([0, 0, 1]),
        "reward": np.array([1.0, 0.0, 1.0]),
        "logp": np.array([-1.0, -3.0, -0.5, -1.0]),
    }
    # s = -2 and -.5: the right one was the less likely, weight sigmoid(1.5)
    omega = sigmoid(1.5)
    found = assigned("lampo", told, library)
    np.testing.assert_allclose(found, [omega, omega, -omega, 0], rtol=1e-12)


# One response of each row of the table: hard right, hard wrong; easy right, easy wrong. Entropies
# make the last two tokens of each the open ones at share .5.
def clip_table(ratio):
    length = np.array([4, 4, 4, 4, 4])
    return {
        "length": length,
        "advantage": np.array([1.0, -1.0, 1.0, 1.0, -2.0]),
        "group": np.array([0, 0, 1, 1, 1]),
        "reward": np.array([1.0, 0.0, 1.0, 1.0, 0.0]),
        "entropy": np.tile([0.1, 0.2, 0.8, 0.9], 5),
        "ratio": np.full(20, ratio),
    }


@libraries
def test_htpo_in_the_band_gives_the_advantage_and_drops_the_tails(library):
    found = assigned("htpo", clip_table(1.0), library, share=0.5).reshape(5, 4)
    assert found[0].tolist() == [0, 1, 1, 1]  # the least open closed one is dropped
    assert found[1].tolist() == [-1] * 4
    assert found[2].tolist() == [1, 1, 1, 0]  # the most open one is dropped
    assert found[3].tolist() == [1, 1, 1, 0]  # and its equal
    assert found[4].tolist() == [-2] * 4


@libraries
def test_htpo_outside_of_the_band(library):
    above = assigned("htpo", clip_table(1.5), library, share=0.5).reshape(5, 4)
    np.testing.assert_allclose(above[0], [0, 0, -1.28, -1.28])  # reversed, as in the code
    np.testing.assert_allclose(above[1], [-1.5] * 4)
    np.testing.assert_allclose(above[2], [0] * 4)
    below = assigned("htpo", clip_table(0.5), library, share=0.5).reshape(5, 4)
    np.testing.assert_allclose(below[0], [0, 0.5, -2, -2])
    np.testing.assert_allclose(below[1], [0, 0, 0.8, 0.8])  # pulled back up
    np.testing.assert_allclose(below[2], [0.5, 0.5, 0.5, 0])
    np.testing.assert_allclose(below[4], [0, 0, 1.6, 1.6])
    far = assigned("htpo", clip_table(11.0), library, share=0.5).reshape(5, 4)
    assert far[1].tolist() == far[4].tolist() == [0] * 4


@libraries
def test_otb_by_hand(library):
    told = {
        "length": np.array([1, 2, 3, 2]),
        "advantage": np.zeros(4),
        "group": np.array([0, 0, 0, 9]),
        "reward": np.array([1.0, 0.0, 1.0, 1.0]),
        "distance": np.sqrt([2.0, 1.0, 1.0, 1.0, 3.0, 5.0, 1.0, 1.0]),
    }
    # position 0: W = 2, 1, 1, B = 3/4; position 1: W = 2 and 4, B = 4/6; position 2: one alone
    found = assigned("otb", told, library)
    np.testing.assert_allclose(found, [1 / 4, -3 / 4, -2 / 3, 1 / 4, 1 / 3, 1, 1, 1], rtol=1e-12)


@given(found=made_up())
@settings(max_examples=20)
def test_loops_give_otb_and_lampo(found):
    for name in ("otb", "lampo"):
        expected = getattr(slow, name)({k: v.tolist() for k, v in found.items()})
        np.testing.assert_allclose(assigned(name, found), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("erpo", {"gamma": -1.0}), ("erpo", {"eta": -1.0}), ("ep_grpo", {"parts": 0}),
        ("lampo", {"tau": 0.0}), ("htpo", {"hard": 2.0}), ("htpo", {"share": 2.0}),
        ("htpo", {"least": -1.0}), ("htpo", {"most": -1.0}), ("htpo", {"low": 2.0}),
        ("htpo", {"high": -1.0}), ("htpo", {"dual": 0.5}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        assigned(name, GROUP, **setting)
