"""The vocabulary: what stores on disk rely on is pinned, and every variable is well formed."""

from enum import IntEnum

import numpy as np
import pytest

from tokensense import schema
from tokensense.schema import PROBE, ROLLOUTS, STATISTICS, Variable, attributes

# These integers lie in stores. A member may be added with a new number; none may change its own.
STORED: dict[type[IntEnum], dict[str, int]] = {
    schema.Kind: {
        "OTHER": 0,
        "DIGIT": 1,
        "COMPUTED_DIGIT": 2,
        "CARRIED_DIGIT": 3,
        "OPERATOR": 4,
        "VARIABLE": 5,
        "FORMAT": 6,
        "CONNECTIVE": 7,
        "DISCOURSE": 8,
        "COPIED": 9,
        "FINAL_ANSWER": 10,
        "CALCULATOR": 11,
    },
    schema.Finish: {"UNKNOWN": 0, "STOP": 1, "LENGTH": 2, "ABORT": 3},
    schema.IdsOrigin: {"EXACT": 0, "RETOKENIZED": 1},
    schema.Label: {"UNLABELED": 0, "NO_ERROR": 1, "ERROR": 2},
    schema.Comparability: {
        "OK": 0,
        "OPENER_DIFFERS": 1,
        "TRUNCATED": 2,
        "BOS": 3,
        "OWN_EXAMPLE": 4,
        "NOT_APPLICABLE": 5,
        "UNEQUAL_LENGTH": 6,
    },
}
DIMS = {
    *("problem", "rollout", "token", "prompt_token", "vocab", "text", "byte"),
    "condition",
}
UNITS = {"1", "nats", "tokens", "bytes"}
VARIABLES = [*ROLLOUTS.items(), *PROBE.items()]


@pytest.mark.parametrize("enumeration", STORED)
def test_stored_numbers_never_change(enumeration: type[IntEnum]):
    assert {member.name: int(member) for member in enumeration} == STORED[enumeration]


def test_every_enumeration_is_pinned():
    found = {
        value
        for value in vars(schema).values()
        if isinstance(value, type) and issubclass(value, IntEnum)
    }
    assert found - {IntEnum} == set(STORED)


@pytest.mark.parametrize(("name", "variable"), VARIABLES, ids=[name for name, _ in VARIABLES])
def test_every_variable_says_dims_dtype_unit_and_meaning(name: str, variable: Variable):
    assert variable.dims
    assert set(variable.dims) <= DIMS
    assert len(set(variable.dims)) == len(variable.dims)
    assert np.dtype(variable.dtype).kind in "iuf"
    assert variable.units in UNITS
    assert len(variable.description.split()) >= 3
    # A variable named as a dim would become an index of labels in xarray.
    assert name not in DIMS
    if variable.flags is not None:
        largest = np.iinfo(variable.dtype).max
        assert all(0 <= int(member) <= largest for member in variable.flags)


def test_no_name_means_two_things():
    assert not set(ROLLOUTS) & set(PROBE)


def test_ragged_dims_have_their_lengths():
    # CF contiguous ragged arrays: the flat dim, and beside it the count of each owner.
    for count, owner in {
        "length": "rollout",
        "prompt_length": "problem",
        "text_length": "text",
    }.items():
        assert ROLLOUTS[count].dims == (owner,)
        assert np.dtype(ROLLOUTS[count].dtype).kind == "i"


def test_statistics_are_the_float32_arrays_of_a_probe_in_one_order():
    floats = tuple(name for name, variable in PROBE.items() if variable.dtype == "float32")
    assert floats == STATISTICS
    assert {PROBE[name].dims for name in STATISTICS} == {("condition", "token")}


def test_flags_are_written_as_plain_values():
    found = attributes(ROLLOUTS["finish"])
    assert found == {
        "units": "1",
        "description": "why the response ended",
        "flag_values": [0, 1, 2, 3],
        "flag_meanings": "unknown stop length abort",
    }
    assert {type(value) for value in found["flag_values"]} == {int}


def test_what_is_no_enumeration_has_no_flags():
    assert set(attributes(PROBE["logp"])) == {"units", "description"}
    assert attributes(PROBE["logp"])["units"] == "nats"


def test_the_words_of_the_sides():
    assert (schema.BASE, schema.POSITIVE, schema.NEGATIVE, schema.NO_LEVEL) == (
        "base",
        "pos",
        "neg",
        "none",
    )
    assert schema.NO_STEP == -1
