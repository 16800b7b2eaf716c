import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tokensense.errors import SchemaError
from tokensense.store import probing


@pytest.fixture(scope="module")
def frozen():
    return driver.rollouts(number=10, mean=20).assign_attrs(digest="d")


def plan_of(frozen, *, size=3, **changes):
    return probing.Plan.make(
        "opposed", driver.header(**changes), driver.ranges(10, size), rollouts=frozen
    )


def test_a_plan_counts_the_tokens_of_its_blocks(frozen):
    plan = plan_of(frozen)
    length = frozen["length"].values
    assert plan.blocks == [[0, 3], [3, 6], [6, 9], [9, 10]]
    assert plan.tokens == [length[:3].sum(), length[3:6].sum(), length[6:9].sum(), length[9]]
    assert length[5] == 0
    assert plan.conditions == 4
    assert plan.sizes_of(1) == {"condition": 4, "rollout": 3, "token": plan.tokens[1]}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(0, 3), (4, 10)], r"block 1 is \[4, 10\) after rollout 3"),
        ([(0, 3), (2, 10)], r"block 1 is \[2, 10\) after rollout 3"),
        ([(0, 3), (3, 3), (3, 10)], r"block 1 is \[3, 3\)"),
        ([(0, 9)], "over all 10 rollouts of the store; they end at 9"),
        ([(0, 11)], "they end at 11"),
        ([], "they end at 0"),
    ],
)
def test_blocks_with_gaps_are_refused(frozen, blocks, message):
    with pytest.raises(SchemaError, match=message):
        probing.Plan.make("opposed", driver.header(), blocks, rollouts=frozen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_digest": ""}, r"\['policy_digest'\]"),
        ({"conditions": []}, r"\['conditions'\]"),
        ({"conditions": {"a": 1}}, r"\['conditions'\]"),
        ({"temperature": np.nan}, "header that JSON can hold"),
        ({"temperature": np.float32(1)}, "header that JSON can hold"),
    ],
)
def test_headers_that_decide_nothing_are_refused(frozen, changes, message):
    with pytest.raises(SchemaError, match=message):
        plan_of(frozen, **changes)


def test_every_fault_of_a_block_is_named(frozen):
    plan = plan_of(frozen)
    good = driver.block(frozen, 3, 6)
    plan.require_block(1, good)
    bad = {**good, "extra": np.zeros(1), "logp": good["logp"].astype(np.float64)}
    bad["entropy"] = good["entropy"][:3]
    del bad["p_max"]
    with pytest.raises(SchemaError) as caught:
        plan.require_block(1, bad)
    for part in (
        "block 1 of probe 'opposed'",
        "for rollouts [3, 6]",
        "`p_max` is missing",
        "`extra` is not known",
        "`logp` needs float32, it has float64",
        f"`entropy` needs shape (4, {plan.tokens[1]}), it has (3, {plan.tokens[1]})",
    ):
        assert part in str(caught.value)
    good["comparability"][0, 0] = 99
    with pytest.raises(SchemaError, match=r"`comparability` needs one of the flags .*\[99\]"):
        plan.require_block(1, good)
    for index in (-1, 4):
        with pytest.raises(SchemaError, match="needs a number below 4"):
            plan.require_block(index, good)


def test_coordinates_have_to_fit(frozen):
    plan = plan_of(frozen)
    frame = plan.frame(driver.coords(), {"scored_by": "m"}, rollouts=frozen)
    assert set(frame.coords) == {"condition", "condition_name"}
    assert frame["length"].identical(frozen["length"])
    assert frame.attrs["scored_by"] == "m"
    assert frame.attrs["block_stops"] == [3, 6, 9, 10]
    short = {"condition": xr.Variable("condition", np.arange(3, dtype=np.int32))}
    with pytest.raises(SchemaError, match="coordinate `condition` needs dims among"):
        plan.frame(short, {}, rollouts=frozen)
    with pytest.raises(SchemaError, match="needs coordinate `condition`; it has "):
        plan.frame({}, {}, rollouts=frozen)
    with pytest.raises(SchemaError, match="attribute"):
        plan.frame(driver.coords(), {"x": np.nan}, rollouts=frozen)


def test_listed_names_the_first_and_counts_the_rest():
    assert probing.listed(["a", "b"]) == "a; b"
    assert probing.listed(list("abcdefgh")) == "a; b; c; d; e and 3 more"
