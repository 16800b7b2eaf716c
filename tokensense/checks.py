"""Checks at the door: each raises an error that says what was needed, what came, and what to do."""

import difflib
from collections.abc import Collection, Iterable
from importlib import import_module
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np

from tokensense.errors import MissingExtraError, SchemaError


@runtime_checkable
class Labelled(Protocol):
    """The little of an xarray object that a check needs."""

    @property
    def dims(self) -> Collection[object]:
        """Names of the dimensions."""
        ...


def require_dims(name: str, array: Labelled, dims: Iterable[str], *, fix: str) -> None:
    """Check that `array` has exactly the dims named, in any order.

    Raises:
        SchemaError: a dim is missing or one too many is there.
    """
    needed, found = sorted(dims), sorted(map(str, array.dims))
    if needed != found:
        raise SchemaError(f"`{name}` needs dims {needed}; it has {found}. To get them: {fix}.")


def require_range(name: str, value: int | float, low: int | float, high: int | float) -> None:
    """Check that `low <= value <= high`; NaN fails.

    Raises:
        SchemaError: `value` lies outside.
    """
    if not low <= value <= high:
        raise SchemaError(f"`{name}` needs a value in [{low}, {high}]; it is {value}.")


def require_member(name: str, value: str, allowed: Iterable[str], *, fix: str = "") -> None:
    """Check that `value` is one of `allowed`.

    Raises:
        SchemaError: it is not; the message lists what is allowed, and what is nearest.
    """
    choices = sorted(allowed)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        fix = f"{f'Did you mean {near[0]!r}? ' if near else ''}{fix}"
        raise SchemaError(f"`{name}` needs one of {choices}; it is {value!r}. {fix}".rstrip())


def require_lengths(name: str, length: np.ndarray, total: int) -> None:
    """Check that `length` holds non-negative integers that add up to `total` tokens.

    Raises:
        SchemaError: a length is negative or the sum differs.
    """
    length = np.asarray(length)
    if length.ndim != 1 or length.dtype.kind not in "iu" or (length.size and length.min() < 0):
        raise SchemaError(
            f"`{name}` needs one non-negative integer a rollout; it has dtype {length.dtype} "
            f"and shape {length.shape}. Give the tokens of each rollout, 0 allowed."
        )
    if int(length.sum()) != total:
        raise SchemaError(
            f"`{name}` needs lengths that add up to the {total} tokens given; they add up to "
            f"{int(length.sum())}. "
            "Check that lengths and token arrays come from the same rollouts."
        )


def require_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Returns:
        The module.

    Raises:
        MissingExtraError: it is not installed; the message names the extra.
    """
    try:
        return import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"`{module}` is needed here and is not installed. "
            f"To get it: pip install -c constraints.txt 'tokensense[{extra}]'."
        ) from cause
