"""What every rule of the catalogue keeps to; the tables say what each rule declares."""

import math
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.credit.builders import (
    LIBRARIES,
    NAMES,
    POSITIVE,
    SHIFTS,
    arrays,
    by_rollout,
    evidence,
    made_up,
)
from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import ADVANTAGES
from tokensense.credit.base import (
    BUDGETS,
    GRADES,
    Direct,
    Weighted,
    adjusted,
    settings_of,
    weights_of,
)
from tokensense.credit.evidence import NOT_FLOAT, PER_ROLLOUT, SUPPLIERS, VECTORS, Evidence
from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_mean

# What each rule preserves.
BUDGET = {
    **dict.fromkeys(
        [
            *("uniform", "step", "random", "span_drop", "oar_p", "oar_g"),
            *("cscr", "cscr_shuffled", "cscr_surprisal", "cscr_entropy", "cscr_gradient_norm"),
            *("cscr_common", "cscr_contrast", "cscr_placebo", "cort", "sc_grpo"),
            *("gcpo", "gcpo_absolute", "gcpo_both", "gcpo_gain", "gcpo_softmax", "gcpo_minmax"),
            *("sibling", "position_alignment", "diff_alignment"),
            *("optw", "vcore", "entropic_budget", "gtpo", "dgpo"),
        ],
        "rollout",
    ),
    **dict.fromkeys(
        [
            *("gtpo_group", "covariance", "delta", "delta_hidden", "delta_hard", "delta_within"),
            "delta_random",
        ],
        "batch",
    ),
    "oracle": "sign",
    **dict.fromkeys(
        [
            *("nthr", "rlsd", "cepo", "ps_opd", "distilled_rl"),
            *("high_entropy", "ar", "stare", "a3po", "tr_grpo", "delta_unnormalized"),
        ],
        "bounded",
    ),
    **dict.fromkeys(
        [
            *("vine", "ktae", "opsd", "sdpo", "cal_opd", "sd_grpo", "rlcsd"),
            *("erpo", "ep_grpo", "lampo", "htpo", "otb"),
        ],
        "free",
    ),
}
# Between what the weights of the rules lie that are bounded.
BOUNDS = {
    "nthr": (0, 1),
    "delta_unnormalized": (0.8, 1.2),
    "rlsd": (0.9, 1.1),
    "cepo": (0.75, 1.25),
    "ps_opd": (0.25, 1),
    "distilled_rl": (1 / 9, 9),
    "high_entropy": (0, 1),
    "ar": (0.8, 1),
    "stare": (0.9, 1.1),
    "a3po": (1, 2),
    "tr_grpo": (0.5, 1.5),
}
# What each rule does to the advantage, where it does not multiply it.
FORM = {
    **dict.fromkeys(["rlcsd", "ktae", "erpo", "ep_grpo"], "adds"),
    **dict.fromkeys(["vine", "opsd", "sdpo", "cal_opd", "sd_grpo", "lampo", "otb"], "replaces"),
    "htpo": "clips",
}
# Rules whose credit may go against the advantage of its rollout, or be there without any.
TURNS_SIGN = {name for name in FORM if name != "rlcsd"}
WITHOUT_CONTRAST = {"vine", "opsd", "sdpo", "cal_opd", "otb"}
# The settings at which a rule is plain GRPO, or why there are none.
UNIFORM = {
    "uniform": {},
    **{name: {"low": 1.0, "high": 1.0} for name in BUDGET if name.startswith("delta")},
    **{name: {"gamma": 0.0} for name in BUDGET if name.startswith("cscr")},
    "step": "its steps are as long as they are",
    "random": "it is random on purpose",
    "oracle": {"cap": 1.0},
    "vine": "the advantage plays no part",
    "span_drop": {"slope": 0.0},
    "oar_p": {"quantile": 0.0, "beta": 0.0},
    "oar_g": {"quantile": 0.0, "beta": 0.0},
    "nthr": "any threshold spares something",
    "ktae": {"strength": 0.0},
    **dict.fromkeys(["opsd", "sdpo", "cal_opd"], "the reward plays no part"),
    "rlsd": {"mix": 0.0},
    "cepo": {"mix": 0.0},
    "ps_opd": {"kept": 1.0},
    "sd_grpo": "the shift gives the sign",
    "cort": {"size": 0.0},
    "distilled_rl": {"bound": 1.0},
    "sc_grpo": "it has no setting",
    **{name: {"mass": 0.4} for name in ("gcpo", "gcpo_absolute", "gcpo_both", "gcpo_gain")},
    "gcpo_softmax": {"temperature": math.inf},
    "gcpo_minmax": {"floor": math.inf},
    **dict.fromkeys(["sibling", "position_alignment", "diff_alignment"], "it has no setting"),
    "rlcsd": {"strength": 0.0},
    "optw": {"low": 1.0, "high": 1.0},
    "vcore": {"tau": 0.0},
    "entropic_budget": {"budget": 0.0},
    "high_entropy": {"share": 1.0},
    "gtpo": {"beta": 0.0},
    "gtpo_group": "it has no setting",
    "ar": {"alpha": 0.0},
    "dgpo": {"tau": math.inf},
    "stare": {"up": 1.0, "down": 1.0},
    "a3po": {"factor": 1.0},
    "covariance": {"width": math.inf},
    "tr_grpo": {"low": 1.0, "high": 1.0},
    **dict.fromkeys(["erpo", "ep_grpo"], "the gate is 1/2 where entropy is average"),
    "lampo": "it is half the leave-one-out advantage",
    "htpo": "it clips",
    "otb": "its baseline is of a position",
}
every_rule = pytest.mark.parametrize("name", CATALOGUE)
weighted = pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in FORM])
few = settings(max_examples=4)


def judged(length, *, seed):
    """Evidence of rollouts that all have an advantage: without one, any weights give no credit."""
    found = arrays(length, seed=seed)
    assert (found["advantage"] != 0).all()
    return found


# What is drawn may be empty, a token long or without an advantage; this never is.
PLENTY = judged([5, 2, 0, 9, 1], seed=8)
plenty = example(found=PLENTY)


def told(name, found, library="numpy"):
    """Just what the rule reads; that nothing else counts is a test of its own."""
    read = CATALOGUE[name].needs | {"length", "advantage", "mask"}
    return evidence({key: found[key] for key in found.keys() & read}, library)


def test_the_tables_are_those_of_the_catalogue():
    assert {name: rule.budget for name, rule in CATALOGUE.items()} == BUDGET
    assert {n: r.form for n, r in CATALOGUE.items() if r.form != "multiplies"} == FORM
    assert {name for name, rule in CATALOGUE.items() if not rule.keeps_sign} == TURNS_SIGN
    found = {name for name, rule in CATALOGUE.items() if rule.signal_without_contrast}
    assert found == WITHOUT_CONTRAST
    assert UNIFORM.keys() == CATALOGUE.keys()
    assert BOUNDS.keys() == {name for name, budget in BUDGET.items() if budget == "bounded"}
    assert set(BUDGET.values()) == BUDGETS.keys()
    assert len(BUDGETS) == 5
    assert NAMES - {"length", "advantage", "mask"} == SUPPLIERS.keys()
    assert set().union(*(rule.needs for rule in CATALOGUE.values())) == SUPPLIERS.keys()


@every_rule
def test_a_rule_says_what_it_is(name):
    rule = CATALOGUE[name]
    assert rule.needs <= SUPPLIERS.keys()
    assert isinstance(rule.assign, Weighted if rule.form == "multiplies" else Direct)
    assert rule.source
    assert rule.grade in GRADES
    text = rule.assign.weigh.__doc__ if rule.form == "multiplies" else rule.assign.give.__doc__
    assert text
    assert "(" not in text.split()[0], "made by dataclass"
    assert all(v is None or isinstance(v, int | float) for v in settings_of(rule).values())


@every_rule
@given(found=made_up())
@plenty
@few
def test_credit_is_finite_and_never_turns_the_sign_unless_it_says_so(name, found):
    rule = CATALOGUE[name]
    credit = rule.assign(told(name, found))
    assert np.isfinite(credit).all()
    spread = np.repeat(found["advantage"], found["length"])
    if rule.keeps_sign:
        assert (credit * spread >= 0).all()
    if not rule.signal_without_contrast:
        assert (credit[spread == 0] == 0).all()


@every_rule
def test_extreme_evidence_gives_finite_credit(name):
    found = judged([4, 3], seed=13)
    for array in (*SHIFTS, *POSITIVE, *VECTORS, "logp", "span_drop"):
        found[array] = found[array] * 1e4
    assert np.isfinite(CATALOGUE[name].assign(told(name, found))).all()
    for array in (*SHIFTS, *POSITIVE, *VECTORS, "distance", "hellinger", "span_drop"):
        found[array] = np.zeros_like(found[array])
    assert np.isfinite(CATALOGUE[name].assign(told(name, found))).all()


@weighted
@given(found=made_up())
@plenty
@few
def test_the_budget_is_kept(name, found):
    weights = weights_of(CATALOGUE[name], told(name, found))
    spread = np.repeat(found["advantage"], found["length"])
    assert (weights >= 0).all()
    if BUDGET[name] == "rollout":
        means = segment_mean(weights, found["length"])
        np.testing.assert_allclose(means[found["length"] > 0], 1, rtol=1e-12)
    elif BUDGET[name] == "batch":
        np.testing.assert_allclose(weights.sum(), weights.size, rtol=1e-12)
    elif BUDGET[name] == "sign":
        for side in (spread > 0, spread < 0):
            np.testing.assert_allclose(
                (weights * spread)[side].sum(), spread[side].sum(), rtol=1e-12
            )
    else:
        low, high = BOUNDS[name]
        assert ((weights >= low - 1e-12) & (weights <= high + 1e-12)).all()


@every_rule
@given(found=made_up(), draw=st.randoms())
@example(found=PLENTY, draw=random.Random(2))
@few
def test_the_order_of_rollouts_does_not_matter(name, found, draw):
    order = list(range(len(found["length"])))
    draw.shuffle(order)
    credit = CATALOGUE[name].assign(told(name, found))
    expected = by_rollout({"length": found["length"], "credit": credit}, order)["credit"]
    other = by_rollout(found, order)
    again = CATALOGUE[name].assign(told(name, other))
    np.testing.assert_allclose(again, expected, rtol=1e-10, atol=1e-12)
    # Nor does it matter what the groups are called.
    renamed = CATALOGUE[name].assign(told(name, other | {"group": 7 - other["group"]}))
    np.testing.assert_allclose(renamed, again, rtol=1e-10, atol=1e-12)


@every_rule
@pytest.mark.parametrize("library", LIBRARIES)
def test_rollouts_of_no_and_of_one_token(name, library):
    for length in ([], [0], [0, 0], [1], [0, 1, 0, 1]):
        found = arrays(length, seed=3)
        credit = np.asarray(CATALOGUE[name].assign(told(name, found, library)))
        assert credit.shape == (sum(length),)
        assert np.isfinite(credit).all()
        if BUDGET[name] == "rollout":
            assert credit.tolist() == np.repeat(found["advantage"], length).tolist()


@every_rule
@given(found=made_up())
@plenty
@few
def test_numpy_and_pytorch_agree(name, found):
    one, other = (CATALOGUE[name].assign(told(name, found, library)) for library in LIBRARIES)
    assert isinstance(one, np.ndarray)
    assert isinstance(other, torch.Tensor)
    np.testing.assert_allclose(other.numpy(), one, rtol=1e-12, atol=1e-12)


@every_rule
def test_no_gradient_flows_and_the_advantage_gives_the_dtype(name):
    found = judged([3, 0, 5], seed=4)
    for dtype in (torch.float32, torch.float64):
        made = {
            n: torch.tensor(a, dtype=dtype, requires_grad=True) if a.dtype.kind == "f" else
            torch.tensor(a) for n, a in found.items()
        }  # fmt: skip
        credit = CATALOGUE[name].assign(Evidence(**made))
        assert isinstance(credit, torch.Tensor)
        assert not credit.requires_grad
        assert credit.dtype == dtype


@every_rule
@given(found=made_up(least=1), draw=st.randoms())
@example(found=PLENTY, draw=random.Random(2))
@few
def test_masked_tokens_get_nothing_and_change_nothing(name, found, draw):
    mask = np.array([draw.random() < 0.6 for _ in found["logp"]], dtype=bool)
    # What stands at masked places is anything, even nothing.
    empty = {n: np.nan if n not in NOT_FLOAT else found[n].dtype.type(1) for n in found}
    holes = {
        n: a if n in PER_ROLLOUT else np.where(mask if a.ndim == 1 else mask[:, None], a, empty[n])
        for n, a in found.items()
    }
    holes["mask"] = mask
    owner = np.repeat(np.arange(len(found["length"])), found["length"])
    short = {n: a if n in PER_ROLLOUT else a[mask] for n, a in found.items()}
    short["length"] = np.bincount(owner[mask], minlength=len(found["length"]))
    expected = CATALOGUE[name].assign(told(name, short))
    for library in LIBRARIES:
        credit = np.asarray(CATALOGUE[name].assign(told(name, holes, library)))
        assert (credit[~mask] == 0).all()
        np.testing.assert_allclose(credit[mask], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, at in UNIFORM.items() if not isinstance(at, str)])
@pytest.mark.parametrize("library", LIBRARIES)
@given(found=made_up(), narrow=st.booleans())
@example(found=PLENTY, narrow=True)
@few
def test_the_uniform_setting_is_plain_grpo_to_the_last_bit(name, library, found, narrow):
    if narrow:
        found = found | {"advantage": found["advantage"].astype(np.float32)}
    credit = adjusted(CATALOGUE[name], **UNIFORM[name]).assign(told(name, found, library))
    expected = np.repeat(found["advantage"], found["length"])
    np.testing.assert_array_equal(np.asarray(credit), expected)


@every_rule
@pytest.mark.parametrize("kind", ADVANTAGES)
def test_equal_rewards_give_exactly_nothing_unless_it_says_so(name, kind):
    found = arrays([4, 3, 2, 5, 1], seed=4)
    # The mean of ten times .1 is not .1: without care this group would have a deviation.
    reward, group = np.array([0.1] * 3 + [0.7] * 2), np.array([5, 5, 5, 2, 2])
    if kind == "pooled":
        reward[:] = 0.1
    found |= {"advantage": ADVANTAGES[kind](reward, group), "reward": reward, "group": group}
    credit = CATALOGUE[name].assign(told(name, found))
    assert (credit != 0).any() if name in WITHOUT_CONTRAST else (credit == 0).all()


@every_rule
def test_a_rule_reads_just_what_it_needs(name):
    rule, found = CATALOGUE[name], judged([3, 4], seed=13)
    needed = {n: found[n] for n in (*rule.needs, "length", "advantage")}
    np.testing.assert_array_equal(rule.assign(evidence(needed)), rule.assign(evidence(found)))
    for lacking in rule.needs:
        rest = {n: a for n, a in needed.items() if n != lacking}
        with pytest.raises(
            SchemaError, match=f"`{lacking}`.*To get it: {re.escape(SUPPLIERS[lacking].text)}"
        ):
            rule.assign(evidence(rest))


@weighted
def test_credit_is_weight_times_advantage(name):
    found = evidence(judged([3, 4], seed=6))
    expected = weights_of(CATALOGUE[name], found) * broadcast(found.advantage, found.length)
    np.testing.assert_array_equal(CATALOGUE[name].assign(found), expected)
