import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.trainer import reference_advantages
from tokensense.trainer.advantages import shaped_rewards, step_advantages
from tokensense.trainer.config import TrainConfig


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=12),
    form=st.sampled_from(["group_std", "group_mean", "leave_one_out"]),
    eps=st.sampled_from([1e-6, 1e-4]),
    ddof=st.sampled_from([0, 1]),
)
def test_advantages_are_those_of_the_plain_reference(rewards, form, eps, ddof):
    groups = [place // 4 for place in range(len(rewards))]
    if len(rewards) % 4 == 1:  # the plain formulas have no group of one
        rewards, groups = rewards[:-1] or rewards * 2, groups[:-1] or [0, 0]
    config = TrainConfig(advantage=form, eps=eps, ddof=ddof)
    found = step_advantages(np.array(rewards), np.array(groups), config)
    truth = reference_advantages(rewards, groups, form=form, eps=eps, ddof=ddof)
    assert found.tolist() == pytest.approx(truth, abs=1e-12)


def test_the_reward_falls_over_the_last_tokens_before_the_limit():
    config = TrainConfig(max_new_tokens=100, overlong=20)
    reward, length = np.array([1.0, 1.0, 0.0, np.nan]), np.array([80, 90, 100, 95])
    found = shaped_rewards(reward, length, config)
    assert found[:3].tolist() == [1.0, 0.5, -1.0]
    assert np.isnan(found[3])


def test_without_overlong_shaping_rewards_stay_the_same_array():
    reward = np.array([1.0, 0.0])
    assert shaped_rewards(reward, np.array([160, 160]), TrainConfig()) is reward
