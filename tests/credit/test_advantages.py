"""Advantages worked out by hand, by loops, and where nothing may come out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.credit.builders import LIBRARIES
from tests.reference import credit as slow
from tokensense.credit.advantages import (
    ADVANTAGES,
    group_mean,
    group_std,
    leave_one_out,
    pooled,
)
from tokensense.errors import SchemaError

REWARDS = st.sampled_from([0.0, 1.0, 0.1, 0.3, -2.5])


def made(library, values):
    return LIBRARIES[library](np.array(values))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_vector_of_delta(library):
    # methods/delta.md section 2.7: [1, 0, 0] with ddof 1, eps 1e-6, and a response all alone.
    found = group_std(made(library, [1.0, 0.0, 0.0, 1.0]), made(library, [1, 1, 1, 0]), eps=1e-6)
    np.testing.assert_allclose(found, [1.154699, -0.577350, -0.577350, 0], atol=2e-6)
    # std of [1, 0, 0]: mean 1/3, squares 4/9 + 1/9 + 1/9 = 2/3, over 2, root
    exact = (2 / 3) / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(found[0], exact, rtol=1e-15)


def test_eps_and_ddof():
    reward, group = np.array([1.0, 0.0]), np.array([0, 0])
    # squares 1/4 + 1/4: ddof 1 gives root 1/2, ddof 0 root 1/4
    assert group_std(reward, group, eps=0.0, ddof=0).tolist() == [1.0, -1.0]
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    np.testing.assert_allclose(group_std(reward, group), [expected, -expected], rtol=1e-15)


def test_groups_need_not_lie_together():
    reward, group = np.array([1.0, 5.0, 0.0, 7.0]), np.array([9, 3, 9, 3])
    assert group_mean(reward, group).tolist() == [0.5, -1.0, -0.5, 1.0]
    assert leave_one_out(reward, group).tolist() == [1.0, -2.0, -1.0, 2.0]
    assert pooled(reward, group).tolist() == [-2.25, 1.75, -3.25, 3.75]


@given(
    members=st.lists(st.tuples(REWARDS, st.integers(0, 2)), max_size=8),
    ddof=st.sampled_from([0, 1]),
    eps=st.sampled_from([0.0, 1e-6, 1e-4]),
)
@settings(max_examples=30)
def test_loops_give_the_same(members, ddof, eps):
    reward = np.array([r for r, _ in members], dtype=np.float64)
    group = np.array([g for _, g in members], dtype=np.int64)
    for library, convert in LIBRARIES.items():
        r, g = convert(reward), convert(group)
        cases = {
            "group_std": group_std(r, g, eps=eps, ddof=ddof),
            "group_mean": group_mean(r, g),
            "leave_one_out": leave_one_out(r, g),
        }
        for kind, found in cases.items():
            expected = slow.advantage(reward.tolist(), group.tolist(), kind, eps=eps, ddof=ddof)
            np.testing.assert_allclose(
                np.asarray(found), expected, rtol=1e-12, atol=1e-12, err_msg=f"{kind} {library}"
            )


@pytest.mark.parametrize("kind", ADVANTAGES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_equal_rewards_are_exactly_nothing_though_their_mean_is_rounded(kind, library):
    rewards = np.full(10, 0.1)
    assert rewards.mean() != 0.1 or math.fsum(rewards) / 10 == 0.1
    for n in (1, 3, 6, 10):
        found = ADVANTAGES[kind](made(library, [0.1] * n), made(library, [0] * n))
        assert found.tolist() == [0.0] * n


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_undecided_rewards_and_missing_labels_are_refused(kind):
    with pytest.raises(SchemaError, match="1 of 2 rewards are not finite"):
        ADVANTAGES[kind](np.array([1.0, np.nan]), np.array([0, 0]))


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_dtype_stays_and_no_gradient_flows(kind):
    reward = torch.tensor([1.0, 0.0], dtype=torch.float32, requires_grad=True)
    found = ADVANTAGES[kind](reward, torch.tensor([0, 0]))
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found[0] == -found[1] != 0
