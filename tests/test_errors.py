"""The error classes: one root, standard parents, one written list."""

import inspect

import pytest

from tokensense import errors

# Class -> the standard exception that generic handlers know it by.
STANDARD = {
    "ConditionError": ValueError,
    "FigureError": ValueError,
    "InputError": ValueError,
    "LockError": OSError,
    "MissingExtraError": ImportError,
    "PolicyError": ValueError,
    "ProcessError": RuntimeError,
    "SchemaError": ValueError,
    "StatisticsError": ValueError,
    "StoreError": OSError,
}
CLASSES = dict(inspect.getmembers(errors, inspect.isclass))


def test_the_list_of_errors_is_the_written_one():
    assert set(CLASSES) == {"TokensenseError", *STANDARD}


@pytest.mark.parametrize(("name", "parent"), STANDARD.items())
def test_every_error_is_ours_and_a_standard_one(name: str, parent: type[Exception]):
    kind = CLASSES[name]
    assert issubclass(kind, errors.TokensenseError)
    assert issubclass(kind, parent)
    assert str(kind("`x` needs 1; it is 2.")) == "`x` needs 1; it is 2."


def test_a_held_lock_is_a_store_error_and_no_other_error_is_part_of_another():
    ours = {
        name: {base.__name__ for base in kind.__mro__[1:]} & set(STANDARD)
        for name, kind in CLASSES.items()
    }
    assert {name: parents for name, parents in ours.items() if parents} == {
        "LockError": {"StoreError"}
    }
