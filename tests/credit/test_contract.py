"""What every rule of the catalogue keeps to; the tables say what each rule declares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.credit.builders import (
    LIBRARIES,
    NAMES,
    arrays,
    by_rollout,
    evidence,
    made_up,
)
from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import ADVANTAGES
from tokensense.credit.base import (
    BUDGETS,
    PER_ROLLOUT,
    SUPPLIERS,
    Evidence,
    Weighted,
    adjusted,
    settings_of,
    weights_of,
)
from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_mean

# What each rule preserves.
BUDGET = {
    "uniform": "rollout",
    "cscr": "rollout",
    "cscr_shuffled": "rollout",
    "cscr_surprisal": "rollout",
    "cscr_entropy": "rollout",
    "cscr_gradient_norm": "rollout",
    "cscr_common": "rollout",
    "cscr_contrast": "rollout",
    "cscr_placebo": "rollout",
}
# The settings at which a rule is plain GRPO, or why there are none.
UNIFORM = {
    "uniform": {},
    **{name: {"gamma": 0.0} for name in BUDGET if name != "uniform"},
}
every_rule = pytest.mark.parametrize("name", CATALOGUE)
few = settings(max_examples=8)


def test_the_tables_are_those_of_the_catalogue():
    assert {name: rule.budget for name, rule in CATALOGUE.items()} == BUDGET
    assert UNIFORM.keys() == CATALOGUE.keys()
    assert set(BUDGET.values()) <= BUDGETS.keys()
    assert len(BUDGETS) == 5
    assert NAMES - {"length", "advantage", "mask"} == SUPPLIERS.keys()


@every_rule
def test_a_rule_says_what_it_is(name):
    rule = CATALOGUE[name]
    assert rule.needs <= SUPPLIERS.keys()
    assert (rule.form == "multiplies") is isinstance(rule.assign, Weighted)
    assert rule.source
    text = rule.assign.weigh.__doc__
    assert text
    assert not text.startswith(type(rule.assign.weigh).__name__ + "("), "made by dataclass"
    assert all(v is None or isinstance(v, int | float) for v in settings_of(rule).values())


@every_rule
@given(found=made_up())
@few
def test_credit_is_finite_and_its_sign_is_that_of_the_advantage(name, found):
    credit = CATALOGUE[name].assign(evidence(found))
    assert np.isfinite(credit).all()
    spread = np.repeat(found["advantage"], found["length"])
    np.testing.assert_array_equal(np.sign(credit), np.sign(spread))


@every_rule
def test_extreme_evidence_gives_finite_credit(name):
    found = arrays([4, 3], seed=1)
    for array in ("z_pos", "z_neg", "placebo_pos", "placebo_neg", "logp", "entropy"):
        found[array] = found[array] * 1e4
    assert np.isfinite(CATALOGUE[name].assign(evidence(found))).all()


@every_rule
@given(found=made_up())
@few
def test_the_budget_is_kept(name, found):
    assert BUDGET[name] == "rollout", "write the check of this kind beside the first such rule"
    weights = weights_of(CATALOGUE[name], evidence(found))
    assert (weights >= 0).all()
    means = segment_mean(weights, found["length"])
    np.testing.assert_allclose(means[found["length"] > 0], 1, rtol=1e-12)


@every_rule
@given(found=made_up(), random=st.randoms())
@few
def test_the_order_of_rollouts_does_not_matter(name, found, random):
    order = list(range(len(found["length"])))
    random.shuffle(order)
    credit = CATALOGUE[name].assign(evidence(found))
    expected = by_rollout({"length": found["length"], "credit": credit}, order)["credit"]
    again = CATALOGUE[name].assign(evidence(by_rollout(found, order)))
    np.testing.assert_allclose(again, expected, rtol=1e-12)


@every_rule
@pytest.mark.parametrize("library", LIBRARIES)
def test_rollouts_of_no_and_of_one_token(name, library):
    for length in ([], [0], [0, 0], [1], [0, 1, 0, 1]):
        found = arrays(length, seed=3)
        weights = weights_of(CATALOGUE[name], evidence(found, library))
        assert weights.tolist() == [1.0] * sum(length)
        credit = CATALOGUE[name].assign(evidence(found, library))
        assert credit.tolist() == np.repeat(found["advantage"], length).tolist()


@every_rule
@given(found=made_up())
@few
def test_numpy_and_pytorch_agree(name, found):
    one, other = (CATALOGUE[name].assign(evidence(found, library)) for library in LIBRARIES)
    assert isinstance(one, np.ndarray)
    assert isinstance(other, torch.Tensor)
    np.testing.assert_allclose(other.numpy(), one, rtol=1e-12, atol=1e-12)


@every_rule
def test_no_gradient_flows_and_the_advantage_gives_the_dtype(name):
    found = arrays([3, 0, 5], seed=2)
    for dtype in (torch.float32, torch.float64):
        made = {
            n: torch.tensor(a, dtype=dtype, requires_grad=True) if a.dtype.kind == "f" else
            torch.tensor(a) for n, a in found.items()
        }  # fmt: skip
        credit = CATALOGUE[name].assign(Evidence(**made))
        assert not credit.requires_grad
        assert credit.dtype == dtype


@every_rule
@given(found=made_up(least=1), random=st.randoms())
@few
def test_masked_tokens_get_nothing_and_change_nothing(name, found, random):
    mask = np.array([random.random() < 0.6 for _ in found["logp"]], dtype=bool)
    # What stands at masked places is anything, even nothing.
    holes = {n: a if n in PER_ROLLOUT else np.where(mask, a, np.nan) for n, a in found.items()} | {
        "mask": mask
    }
    owner = np.repeat(np.arange(len(found["length"])), found["length"])
    short = {n: a if n in PER_ROLLOUT else a[mask] for n, a in found.items()}
    short["length"] = np.bincount(owner[mask], minlength=len(found["length"]))
    expected = CATALOGUE[name].assign(evidence(short))
    for library in LIBRARIES:
        credit = np.asarray(CATALOGUE[name].assign(evidence(holes, library)))
        assert (credit[~mask] == 0).all()
        np.testing.assert_allclose(credit[mask], expected, rtol=1e-12)


@every_rule
@pytest.mark.parametrize("library", LIBRARIES)
@given(found=made_up(), narrow=st.booleans())
@few
def test_the_uniform_setting_is_plain_grpo_to_the_last_bit(name, library, found, narrow):
    if narrow:
        found["advantage"] = found["advantage"].astype(np.float32)
    credit = adjusted(CATALOGUE[name], **UNIFORM[name]).assign(evidence(found, library))
    expected = np.repeat(found["advantage"], found["length"])
    np.testing.assert_array_equal(np.asarray(credit), expected)


@every_rule
@pytest.mark.parametrize("kind", ADVANTAGES)
def test_equal_rewards_give_exactly_nothing(name, kind):
    found = arrays([4, 3, 2, 5, 1], seed=4)
    # The mean of ten times .1 is not .1: without care this group would have a deviation.
    reward, group = np.array([0.1] * 3 + [0.7] * 2), np.array([5, 5, 5, 2, 2])
    if kind == "pooled":
        reward[:] = 0.1
    found["advantage"] = ADVANTAGES[kind](reward, group)
    assert (CATALOGUE[name].assign(evidence(found)) == 0).all()


@every_rule
def test_a_rule_reads_just_what_it_needs(name):
    rule, found = CATALOGUE[name], arrays([3, 4], seed=5)
    needed = {n: found[n] for n in (*rule.needs, "length", "advantage")}
    np.testing.assert_array_equal(rule.assign(evidence(needed)), rule.assign(evidence(found)))
    for lacking in rule.needs:
        rest = {n: a for n, a in needed.items() if n != lacking}
        with pytest.raises(SchemaError, match=f"`{lacking}`.*To get it: {SUPPLIERS[lacking]}"):
            rule.assign(evidence(rest))


@every_rule
def test_credit_is_weight_times_advantage(name):
    found = evidence(arrays([3, 4], seed=6))
    expected = weights_of(CATALOGUE[name], found) * broadcast(found.advantage, found.length)
    np.testing.assert_array_equal(CATALOGUE[name].assign(found), expected)
