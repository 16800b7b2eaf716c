"""The checks at the door: what passes, what is refused, and in which words."""

import math
import sys

import numpy as np
import pytest
import xarray as xr

from tokensense import checks
from tokensense.errors import MissingExtraError, SchemaError


def test_dims_pass_in_any_order():
    array = xr.DataArray(np.zeros((2, 3)), dims=("condition", "token"))
    checks.require_dims("shift", array, ("token", "condition"), fix="study.tokens()")
    checks.require_dims("shift", array.to_dataset(name="x"), ["condition", "token"], fix="-")


@pytest.mark.parametrize(
    ("dims", "needed"), [(("token",), ("token", "condition")), (("token", "condition"), ("token",))]
)
def test_a_missing_dim_and_one_too_many_are_refused(dims: tuple[str, ...], needed: tuple[str, ...]):
    array = xr.DataArray(np.zeros((1,) * len(dims)), dims=dims)
    message = (
        rf"^`shift` needs dims \[{', '.join(map(repr, sorted(needed)))}\]; "
        rf"it has \[{', '.join(map(repr, sorted(dims)))}\]\. To get them: study\.tokens\(\)\.$"
    )
    with pytest.raises(SchemaError, match=message):
        checks.require_dims("shift", array, needed, fix="study.tokens()")


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_range_holds_its_ends(value: float):
    checks.require_range("q", value, 0.0, 1.0)


@pytest.mark.parametrize("value", [math.nextafter(0.0, -1.0), math.nextafter(1.0, 2.0), math.nan])
def test_outside_the_range_and_nan_are_refused(value: float):
    with pytest.raises(
        SchemaError, match=rf"^`q` needs a value in \[0\.0, 1\.0\]; it is {value}\.$"
    ):
        checks.require_range("q", value, 0.0, 1.0)


def test_an_infinite_end_is_no_limit():
    checks.require_range("floor", 1e300, 0.0, math.inf)


def test_members_pass():
    checks.require_member("format", "jsonl", {"verl", "jsonl"})


def test_a_stranger_is_refused_with_the_list():
    message = r"^`format` needs one of \['jsonl', 'verl'\]; it is 'csv'\. Convert it first\.$"
    with pytest.raises(SchemaError, match=message):
        checks.require_member("format", "csv", ["verl", "jsonl"], fix="Convert it first.")
    with pytest.raises(SchemaError, match=r"it is 'csv'\.$"):
        checks.require_member("format", "csv", ["verl"])
    with pytest.raises(SchemaError, match=r"it is 'csrc'\. Did you mean 'cscr'\?$"):
        checks.require_member("rule", "csrc", ["verl", "cscr"])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16])
def test_lengths_that_add_up_pass(dtype: type):
    checks.require_lengths("length", np.array([2, 0, 3], dtype=dtype), 5)
    checks.require_lengths("length", np.array([], dtype=dtype), 0)


@pytest.mark.parametrize(
    ("length", "came"),
    [
        (np.array([2, -1, 4]), r"dtype int64 and shape \(3,\)"),
        (np.array([2.0, 3.0]), r"dtype float64 and shape \(2,\)"),
        (np.array([True, True]), r"dtype bool and shape \(2,\)"),
        (np.array([[5]]), r"dtype int64 and shape \(1, 1\)"),
        (np.array(5), r"dtype int64 and shape \(\)"),
    ],
)
def test_what_is_no_length_is_refused(length: np.ndarray, came: str):
    with pytest.raises(SchemaError, match=f"one non-negative integer a rollout; it has {came}"):
        checks.require_lengths("length", length, 5)


@pytest.mark.parametrize("total", [4, 6])
def test_lengths_that_do_not_add_up_are_refused(total: int):
    with pytest.raises(SchemaError, match=f"add up to the {total} tokens given; they add up to 5"):
        checks.require_lengths("length", np.array([2, 0, 3]), total)


def test_small_integers_do_not_wrap_around():
    # 3 * 100 is 44 in int8.
    checks.require_lengths("length", np.array([100, 100, 100], dtype=np.int8), 300)


def test_an_extra_that_is_there_comes_back_as_a_module():
    assert checks.require_extra("json", "io") is sys.modules["json"]


def test_a_missing_extra_is_named_with_the_command():
    command = r"pip install -c constraints\.txt 'tokensense\[math\]'"
    with pytest.raises(MissingExtraError, match=f"`no_such_module` is needed.*{command}") as caught:
        checks.require_extra("no_such_module", "math")
    assert isinstance(caught.value.__cause__, ImportError)
