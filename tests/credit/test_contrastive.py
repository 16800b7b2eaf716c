"""GCPO's numbers, RLCSD's vectors, alignments by hand."""

import json
import math

import numpy as np
import pytest

from tests.credit.builders import LIBRARIES, arrays, evidence
from tests.credit.vectors import Z_NEG, Z_POS, credit
from tokensense.credit import CATALOGUE
from tokensense.credit.base import weights_of
from tokensense.credit.contrastive import Rlcsd, rank_weights
from tokensense.errors import SchemaError

RLCSD_R = [0.122459, 0.5, 0.499089, -0.5, 0.049834, -0.499998]
RLCSD = {
    0.8: [0.922459, 1.3, 1.299089, 0.3, 0.849834, 0.300002],
    -0.8: [-0.677541, -0.3, -0.300911, -1.3, -0.750166, -1.299998],
}
libraries = pytest.mark.parametrize("library", LIBRARIES)


@pytest.mark.parametrize(
    ("count", "share", "effective"),
    [(10, 0.7802, 0.5627), (100, 0.7979, None), (1000, 0.7998, None)],
)
def test_rank_weights_have_the_written_numbers(count, share, effective):
    # methods/gcpo_and_optimal_weights.md section 1.3
    score = np.random.default_rng(0).permutation(count).astype(float)
    weights = rank_weights(score, np.array([count]), share=0.4, mass=0.8)
    ordered = np.sort(weights)[::-1]
    assert ordered[: round(0.4 * count)].sum() / count == pytest.approx(share, abs=6e-5)
    assert (np.argsort(weights) == np.argsort(score)).all()
    if effective:
        assert count / (weights**2).sum() == pytest.approx(effective, abs=6e-5)


def test_rank_weights_tend_to_their_limits():
    weights = rank_weights(np.arange(200_000.0), np.array([200_000]), share=0.4, mass=0.8)
    a = math.log(0.2) / math.log(0.6) - 1
    assert a == pytest.approx(2.15066, abs=5e-6)
    assert weights.max() == pytest.approx(3.1507, abs=1e-4)
    assert weights.size / (weights**2).sum() == pytest.approx((2 * a + 1) / (a + 1) ** 2, abs=1e-5)
    assert (2 * a + 1) / (a + 1) ** 2 == pytest.approx(0.5340, abs=5e-5)


@libraries
def test_gcpo_by_hand(library):
    # k of 3 is 16, cut to 10; of -3 it is 2.05; the two zeros share ranks 1 and 2.
    found = credit("gcpo", library, negative_prompt=[0.0, 3.0, -3.0, 0.0])
    a = math.log(0.2) / math.log(0.6) - 1
    u = np.array([1.5, 4, 3, 1.5]) / 4
    np.testing.assert_allclose(found, 4 * u**a / (u**a).sum(), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in CATALOGUE if n.startswith("gcpo")])
def test_no_contrast_is_uniform(name):
    assert credit(name, negative_prompt=[0.0, 0.0, 0.0]).tolist() == [1, 1, 1]
    assert credit(name, negative_prompt=[1e-9, -1e-8, 0.0], settings={"floor": 1e-4}).tolist() == [
        1, 1, 1
    ]  # fmt: skip


def test_the_other_metrics_by_hand():
    d = np.array([2.0, -1.0, 0.5, -0.1])

    def k(x):
        return np.exp(x) - x - 1

    orders = {
        "gcpo": k(d),
        "gcpo_absolute": abs(d),
        "gcpo_both": (k(d) + k(-d)) / 2,
        # positive parts 0, 1, 0, .1; their 90th percentile at 2.7 of 3: .1 + .7 x .9
        "gcpo_gain": np.minimum(np.maximum(-d, 0), 0.73),
    }
    for name, score in orders.items():
        expected = rank_weights(score, np.array([4]), share=0.4, mass=0.8)
        np.testing.assert_allclose(credit(name, negative_prompt=d), expected, rtol=1e-12)


def test_the_other_normalizations_by_hand():
    d = np.array([2.0, -1.0, 0.0])
    k = np.exp(d) - d - 1
    e = np.exp(k / k.max())
    np.testing.assert_allclose(
        credit("gcpo_softmax", negative_prompt=d), 3 * e / e.sum(), rtol=1e-12
    )
    np.testing.assert_allclose(
        credit("gcpo_minmax", negative_prompt=d), 3 * k / k.sum(), rtol=1e-12
    )


@libraries
@pytest.mark.parametrize("advantage", RLCSD)
def test_rlcsd(library, advantage):
    told = {"sibling_pos": Z_POS, "sibling_neg": Z_NEG}
    found = credit("rlcsd", library, advantage=advantage, **told)
    np.testing.assert_allclose(found, RLCSD[advantage], atol=6e-7)


def test_rlcsd_adds_the_written_terms_and_stops_at_zero(shared):
    vectors = json.loads((shared / "methods/vectors/cscr.json").read_text())
    found = evidence(arrays([6]) | {"sibling_pos": np.array(Z_POS), "sibling_neg": np.array(Z_NEG)})
    np.testing.assert_allclose(Rlcsd().added(found), RLCSD_R, atol=6e-7)
    np.testing.assert_allclose(Rlcsd().added(found), vectors["rlcsd_r"], atol=6e-7)
    told = {"sibling_pos": [-1.0, 1.0], "sibling_neg": [0.0, 0.0]}
    assert credit("rlcsd", advantage=0.3, **told).tolist() == [0.0, 0.8]
    assert credit("rlcsd", advantage=0.0, **told).tolist() == [0.0, 0.0]
    # tanh(.0008 / .02) / 2 lies just below the threshold of .02
    told = {"sibling_pos": [0.0007], "sibling_neg": [0.0]}
    assert credit("rlcsd", advantage=0.3, **told).tolist() == [0.3]


def test_sibling_weighs_by_the_size_of_the_contrast():
    found = credit("sibling", sibling_pos=[1.0, 0.0, 0.0], sibling_neg=[0.0, 2.0, 0.0])
    np.testing.assert_allclose(found, [1, 2, 0], rtol=1e-12)
    assert credit("sibling", sibling_pos=[1.0, 1.0], sibling_neg=[1.0, 1.0]).tolist() == [1, 1]


# Two right responses and a wrong one; another group, where there is no other outcome.
TOLD = {
    "length": np.array([4, 4, 5, 2]),
    "advantage": np.array([1.0, 1.0, -2.0, 1.0]),
    "group": np.array([0, 0, 0, 1]),
    "token_id": np.array([1, 2, 3, 4, 9, 1, 2, 3, 1, 2, 8, 3, 4, 1, 2]),
}


def by_rollout(name, library="numpy"):
    weights = np.asarray(weights_of(CATALOGUE[name], evidence(TOLD, library)))
    return np.split(weights, np.cumsum(TOLD["length"])[:-1])


@libraries
def test_alignment_by_position(library):
    first, second, wrong, alone = by_rollout("position_alignment", library)
    assert first.tolist() == [0, 0, 2, 2]  # 3 and 4 stand where the wrong one has 8 and 3
    np.testing.assert_allclose(second, np.array([1, 1, 1, 0]) / 0.75, rtol=1e-12)
    # against the first 0 0 1 1 1 (it is longer), against the second 1 1 1 0 1
    np.testing.assert_allclose(wrong, np.array([0.5, 0.5, 1, 0.5, 1]) / 0.7, rtol=1e-12)
    assert alone.tolist() == [1, 1]


@libraries
def test_alignment_by_blocks(library):
    first, second, wrong, alone = by_rollout("diff_alignment", library)
    assert first.tolist() == [1, 1, 1, 1]  # all of it is found: no token differs
    assert second.tolist() == [4, 0, 0, 0]  # 9 is nowhere
    # 1 2 8 3 4: the inserted 8 differs from both, 4 from the second
    np.testing.assert_allclose(wrong, np.array([0, 0, 1, 0, 0.5]) / 0.3, rtol=1e-12)
    assert alone.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("gcpo", {"share": 0.0}), ("gcpo", {"mass": 0.3}), ("gcpo", {"floor": -1.0}),
        ("gcpo_softmax", {"temperature": 0.0}), ("rlcsd", {"strength": -1.0}),
        ("rlcsd", {"scale": 0.0}), ("rlcsd", {"threshold": -1.0}), ("rlcsd", {"limit": -1.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        credit(name, settings=setting, negative_prompt=[0.0])
