"""The record of a rule, its settings, and what is refused at the door."""

import numpy as np
import pytest
import torch

from tests.credit.builders import arrays, evidence
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Credit, adjusted, by_weight, settings_of, weights_of
from tokensense.credit.evidence import own_tokens
from tokensense.errors import SchemaError


def doubled(evidence):
    """Weight 2."""
    return np.full(int(evidence.length.sum()), 2.0)


def test_a_rule_is_made_of_a_weight_function():
    rule = by_weight(doubled, needs=frozenset(), source="none", budget="free", grade="own")
    assert rule[1:] == (frozenset(), "multiplies", "none", "free", "own", True, False)
    found = evidence({"length": np.array([2, 1]), "advantage": np.array([1.5, -1.0])})
    assert rule.assign(found).tolist() == [3.0, 3.0, -2.0]
    assert weights_of(rule, found).tolist() == [2.0, 2.0, 2.0]
    assert settings_of(rule) == {}


def test_a_rule_that_does_not_multiply_has_no_weights():
    def replaced(evidence):
        return np.zeros(int(evidence.length.sum()))

    rule = Credit(replaced, frozenset(), "replaces", "none", "free", "own")
    assert weights_of(rule, evidence(arrays([2]))) is None
    assert settings_of(rule) == {}
    with pytest.raises(SchemaError, match=r"one of \[\]; it has no \['gamma'\]"):
        adjusted(rule, gamma=0.0)


def test_settings_change_and_the_rest_of_the_rule_stays():
    rule = CATALOGUE["cscr_shuffled"]
    other = adjusted(rule, gamma=0.5, seed=7)
    assert settings_of(other) == settings_of(rule) | {"gamma": 0.5, "seed": 7}
    assert settings_of(rule)["gamma"] == 0.2
    assert other[1:] == rule[1:]
    assert adjusted(CATALOGUE["uniform"]).assign == CATALOGUE["uniform"].assign
    with pytest.raises(SchemaError, match=r"\['gamma', 'quantile', .*no \['lambda_'\]"):
        adjusted(CATALOGUE["cscr"], lambda_=0.1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("z_pos", np.zeros(4), r"`z_pos` needs one entry a token, 5 by `length`.*\(4,\)"),
        ("z_pos", np.array([0, 1, np.nan, np.inf, 0]), "`z_pos` needs finite numbers; 2 of 5"),
        ("advantage", np.zeros(3), "`advantage` needs one entry a rollout, 2 by"),
        ("advantage", np.array([1.0, np.nan]), "`advantage` needs finite numbers; 1 of 2"),
        ("key", np.zeros(5, np.int64), "`key` needs one entry a rollout"),
        ("mask", np.ones(2, bool), "`mask` needs one entry a token"),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_does_not_fit_is_refused(name, value, said, library):
    found = arrays([2, 3]) | {name: value}
    with pytest.raises(SchemaError, match=said):
        CATALOGUE["cscr"].assign(evidence(found, library))


def test_whole_numbers_are_refused_where_credit_would_be_cut():
    # Outside of the tests nobody checks the annotations: this is the door itself.
    found = evidence(arrays([1]))
    object.__setattr__(found, "advantage", np.array([1]))
    with pytest.raises(SchemaError, match=r"`advantage` needs floating-point numbers; .*int64"):
        own_tokens(found)


def test_what_a_rule_sees_is_detached_wide_and_without_masked_tokens():
    found = arrays([2, 3])
    made = {name: torch.tensor(array) for name, array in found.items()}
    made["logp"] = made["logp"].to(torch.float32).requires_grad_()
    made["mask"] = torch.tensor([True, False, False, True, True])
    seen = own_tokens(evidence(made, "torch"))
    assert seen.mask is None
    assert seen.length.tolist() == [1, 2]
    assert not seen.logp.requires_grad
    assert seen.logp.dtype == torch.float64
    assert seen.logp.tolist() == made["logp"].detach()[made["mask"]].tolist()
    assert seen.key.tolist() == found["key"].tolist()
