import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tokensense.errors import SchemaError, StoreError
from tokensense.schema import ROLLOUTS, Variable
from tokensense.store import guard


def test_dims_in_another_order_are_aligned_by_name():
    table = {"a": Variable(("x", "y"), "int32", "1", "a")}
    dataset = xr.Dataset({"a": (("y", "x"), np.arange(6, dtype=np.int32).reshape(3, 2))})
    found = guard.conform(dataset, table, what="it")
    assert found["a"].dims == ("x", "y")
    assert found["a"].values.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_every_difference_from_the_schema_is_named():
    dataset = driver.rollouts().drop_vars("kind").assign(extra=1)
    dataset["token_id"] = dataset["token_id"].astype(np.uint16)
    dataset["reward"] = ("problem", np.zeros(6, np.float32))
    with pytest.raises(SchemaError) as caught:
        guard.conform(dataset, ROLLOUTS, what="/rollouts")
    for part in (
        "/rollouts needs",
        "`kind` is missing",
        "`extra` is not known",
        "`token_id` needs dtype int32, it has uint16",
        "`reward` needs dims ('rollout',), it has ('problem',)",
        "nothing was written",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("length", 0, 5, "add up"),
        ("token_id", 3, -1, r"`token_id` needs values of 0 to 2147483647; at 3 it has -1"),
        ("problem_of", 1, 6, r"`problem_of` needs values of 0 to 5; at 1 it has 6"),
        ("answer", 0, 7, r"`answer` needs values of -1 to 6; at 0 it has 7"),
        ("finish", 2, 9, r"`finish` needs one of the flags \[0, 1, 2, 3\]; it has \[9\]"),
    ],
)
def test_values_out_of_range_are_refused(name, place, value, message):
    dataset = driver.rollouts()
    dataset[name][place] = value
    with pytest.raises(SchemaError, match=message):
        guard.conform(dataset, ROLLOUTS, what="/rollouts")


@pytest.mark.parametrize(
    ("dtype", "values"), [("int64", [0, 151643]), ("uint32", [0, 151643]), ("int32", [0, 151643])]
)
def test_another_dtype_is_converted_with_a_note_where_every_value_survives(dtype, values):
    table = {"a": Variable(("x",), "int32", "1", "a")}
    dataset = xr.Dataset({"a": ("x", np.array(values, dtype))})
    if dtype == "int32":
        found = guard.conform(dataset, table, what="it")
    else:
        with pytest.warns(UserWarning, match=rf"it: converted .*: `a` from {dtype} to int32"):
            found = guard.conform(dataset, table, what="it")
    assert found["a"].dtype == np.int32
    assert found["a"].values.tolist() == values


@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        ("int64", [2**31], "int32"),  # would become -2147483648
        ("uint16", [151643 % 2**16], "int32"),  # was another id before
        ("float16", [0.5], "float32"),
        ("float64", [0.1], "float32"),  # not the same number
        ("float64", [1e300], "float32"),  # would become inf
        ("float32", [1.0], "int32"),  # ids are no floats, whatever their values
        ("bool", [True], "int8"),
    ],
)
def test_what_would_not_survive_is_refused(dtype, values, wanted):
    table = {"a": Variable(("x",), wanted, "1", "a")}
    dataset = xr.Dataset({"a": ("x", np.array(values, dtype))})
    with pytest.raises(SchemaError, match=rf"`a` needs dtype {wanted}, it has {dtype}"):
        guard.conform(dataset, table, what="it")


def test_nan_survives_a_conversion():
    table = {"a": Variable(("x",), "float32", "1", "a")}
    dataset = xr.Dataset({"a": ("x", np.array([np.nan, 0.5, -np.inf]))})
    with pytest.warns(UserWarning, match="float64 to float32"):
        found = guard.conform(dataset, table, what="it")
    np.testing.assert_array_equal(found["a"].values, np.array([np.nan, 0.5, -np.inf], np.float32))


@pytest.mark.parametrize("name", ["token_id", "reward", "text_byte"])
def test_an_append_that_would_change_what_is_stored_is_refused(name):
    stored = driver.rollouts(number=4, mean=5)
    both = stored.copy(deep=True)
    both[name].values[0] = both[name].values[0] + 1
    with pytest.raises(StoreError, match=rf"changed would be `{name}`\. Nothing was written"):
        guard.require_beginning(stored, both)
    guard.require_beginning(stored, stored)
