"""Sums, means, ranks and quantiles of each rollout on flat ragged arrays, NumPy and PyTorch alike.

Reads  `values` (..., token), the tokens of all rollouts back to back; `length` (rollout,), the
       tokens of each.
Gives  (..., rollout), or (..., token) for ranks, normalized values and broadcasts, in the library,
       on the device and in the unit of `values`.
Sign   kept: nothing here takes an absolute value.

Empty      A rollout of no tokens has sum 0; its mean, maximum, minimum and quantiles are NaN.
NaN        A NaN token makes its own rollout NaN (all its ranks, all its normalized values) and no
           other. So do +inf and -inf in one sum.
dtype      float32 and float64 come back as they came. Work is done in float64 and rounded once: a
           float32 sum of ten million tokens is right to its last bit. Integers and booleans are
           summed as int64 and elsewhere read as float64 (exact to 2**53).
Cost       O(T) for sums, O(T log T) for ranks and quantiles, no loop over rollouts. The same input
           gives the same bytes on a CPU; on a GPU the last bits of a float64 sum may vary.
Gradients  flow through PyTorch tensors, except through ranks, which are steps.

Two traps are avoided on purpose: `np.add.reduceat` gives the first token of the *next* rollout for
an empty one, and differences of a cumulative sum cancel and let one NaN spoil all that follows it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import (
    array_namespace,
    device,
    is_numpy_namespace,
    is_torch_namespace,
    to_device,
)
from jaxtyping import Bool, Float, Float64, Int64, Integer, Shaped

from tokensense.checks import require_lengths, require_range
from tokensense.errors import SchemaError

# The array library is open here: NumPy or PyTorch, as `_namespace` checks. Torch is never imported.
Array: TypeAlias = Any
Namespace: TypeAlias = Any
Dtype: TypeAlias = Any


@dataclass(frozen=True)
class _Flat:
    """Values of all leading rows back to back: one long ragged array, so that all work is 1-d."""

    xp: Namespace
    values: Shaped[Array, " flat"]
    length: Int64[np.ndarray, " segment"]
    lead: tuple[int, ...]
    dtype: Dtype  # of the caller's floats; results come back in it

    def place(self, host: Shaped[np.ndarray, "*any"]) -> Shaped[Array, "*any"]:
        """Bring a small array from the host to the library and device of the values."""
        return self.xp.asarray(host, device=device(self.values))

    @cached_property
    def owner(self) -> Int64[Array, " flat"]:
        """Say which segment each value belongs to."""
        # On the host: `torch.repeat_interleave` of ten tokens costs more than all else together.
        return self.place(np.repeat(np.arange(self.length.size), self.length))

    def start(self) -> Int64[np.ndarray, " segment"]:
        """Give the first position of each segment."""
        start: np.ndarray = np.cumsum(self.length) - self.length
        return start

    def give(self, result: Shaped[Array, " n"], last: int) -> Shaped[Array, "..."]:
        """Give a flat result the caller's leading dims and dtype; `last` entries a row."""
        with np.errstate(over="ignore"):  # a float32 sum beyond its range is inf, as in PyTorch
            rows = self.xp.reshape(result, (*self.lead, last))
            return self.xp.astype(rows, self.dtype, copy=False)


def offsets(length: Integer[Array, " rollout"]) -> Int64[Array, " rollout+1"]:
    """Where each rollout starts in the flat arrays, and at the end where the last one stops.

    Rollout r holds the tokens from offsets[r] up to, but without, offsets[r + 1].

    Args:
        length: tokens of each rollout, >= 0.

    Raises:
        SchemaError: `length` is not one non-negative integer a rollout.

    Example:
        >>> offsets(np.array([2, 0, 3])).tolist()
        [0, 2, 2, 5]
    """
    xp, host = _namespace("length", length), _host(length)
    return xp.asarray(np.concatenate([[0], np.cumsum(host)]), device=device(length))


def segment_index(length: Integer[Array, " rollout"]) -> Int64[Array, " token"]:
    """Which rollout each token belongs to. Argument as in `offsets`.

    Raises:
        SchemaError: `length` is not one non-negative integer a rollout.

    Example:
        >>> segment_index(np.array([2, 0, 3])).tolist()
        [0, 0, 2, 2, 2]
    """
    xp, host = _namespace("length", length), _host(length)
    return xp.asarray(np.repeat(np.arange(host.size), host), device=device(length))


def broadcast(
    values: Shaped[Array, "*lead _"], length: Integer[Array, " rollout"]
) -> Shaped[Array, "*lead token"]:
    """Give every token the value of its rollout; units, sign and dtype are those of `values`.

    Args:
        values: one entry a rollout in the last dim.
        length: as in `offsets`.

    Raises:
        SchemaError: `length` is not one non-negative integer for each rollout of `values`.

    Example:
        >>> broadcast(np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1])).tolist()
        [1.0, 1.0, 3.0]
    """
    xp, host = _namespace("values", values), _host(length)
    if values.ndim == 0 or values.shape[-1] != host.size:
        raise SchemaError(
            f"`values` needs an entry for each of the {host.size} rollouts of `length` in its last "
            f"dim; its shape is {tuple(values.shape)}. Give values of the same rollouts."
        )
    index = xp.asarray(np.repeat(np.arange(host.size), host), device=device(values))
    return xp.take(values, index, axis=-1)


def segment_sum(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Shaped[Array, "*lead rollout"]:
    """Sum over the tokens of each rollout; 0 where it is empty; a count (int64) of booleans.

    Args:
        values: flat over the tokens of all rollouts in the last dim; any unit.
        length: as in `offsets`; adds up to the tokens of `values`.

    Raises:
        SchemaError: `length` and `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_sum(np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1])).tolist()
        [3.0, 0.0, 4.0]
    """
    flat = _flatten(values, length)
    return flat.give(_sum(flat), len(length))


def segment_mean(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Float[Array, "*lead rollout"]:
    """Mean over the tokens of each rollout, in the unit of `values`; NaN for an empty rollout.

    Arguments as in `segment_sum`.

    Raises:
        SchemaError: `length` and `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_mean(np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1])).tolist()
        [1.5, nan, 4.0]
    """
    flat = _flatten(values, length, real=True)
    # NaN as the divisor of an empty rollout: 0 / 0 would give the same and a warning.
    divisor = np.where(flat.length > 0, flat.length, np.nan)
    return flat.give(_sum(flat) / flat.place(divisor), len(length))


def segment_max(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Float[Array, "*lead rollout"]:
    """Largest value of each rollout, in the unit of `values`; NaN for an empty rollout.

    Arguments as in `segment_sum`.

    Raises:
        SchemaError: `length` and `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_max(np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1])).tolist()
        [2.0, nan, 4.0]
    """
    flat = _flatten(values, length, real=True)
    return flat.give(_extreme(flat, largest=True), len(length))


def segment_min(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Float[Array, "*lead rollout"]:
    """Smallest value of each rollout, in the unit of `values`; NaN for an empty rollout.

    Arguments as in `segment_sum`.

    Raises:
        SchemaError: `length` and `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_min(np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1])).tolist()
        [1.0, nan, 4.0]
    """
    flat = _flatten(values, length, real=True)
    return flat.give(_extreme(flat, largest=False), len(length))


def segment_ranks(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Float[Array, "*lead token"]:
    """Rank of each token in its own rollout, 1 for the smallest; ties share their average rank.

    Arguments as in `segment_sum`.

    Returns:
        Ranks in [1, length of the rollout], no unit; all NaN in a rollout that holds a NaN.
        float32 ranks are exact to 2**23 tokens a rollout.

    Raises:
        SchemaError: `length` and `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_ranks(np.array([5.0, 1.0, 1.0, 9.0]), np.array([3, 1])).tolist()
        [3.0, 1.5, 1.5, 1.0]
    """
    flat = _flatten(values, length, real=True)
    xp, owner, order = flat.xp, flat.owner, _order(flat)
    ordered = xp.take(flat.values, order)
    count = ordered.shape[0]
    # A run holds equal values of one segment. Sorted by segment, `owner` holds as before.
    fresh = flat.place(np.ones(count, dtype=bool))
    fresh[1:] = (ordered[1:] != ordered[:-1]) | (owner[1:] != owner[:-1])
    first = xp.nonzero(fresh)[0]
    size = xp.concat([first[1:], flat.place(np.full(min(count, 1), count))]) - first
    middle = xp.astype(first, xp.float64) + (xp.astype(size, xp.float64) - 1) / 2
    run = xp.cumulative_sum(xp.astype(fresh, xp.int64)) - 1
    ranks = xp.empty_like(flat.values)
    ranks[order] = xp.take(middle, run) - xp.take(flat.place(flat.start()), owner) + 1
    ranks = xp.where(xp.take(_holds_nan(flat), owner), flat.place(np.array(np.nan)), ranks)
    return flat.give(ranks, values.shape[-1])


def segment_quantile(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"], *, q: float
) -> Float[Array, "*lead rollout"]:
    """The q-quantile of each rollout, in the unit of `values`; NaN for an empty rollout.

    Linear interpolation at position q (n - 1) among the n sorted values, as in
    `numpy.quantile(method="linear")`, except that between a finite and an infinite value the result
    is infinite everywhere (NumPy gives NaN in one half). `q` lies in [0, 1], 0.5 is the median;
    other arguments as in `segment_sum`.

    Raises:
        SchemaError: `q` is outside [0, 1], `length` and `values` do not belong together, or
            `values` is not a real array.

    Example:
        >>> segment_quantile(np.array([5.0, 1.0, 2.0, 9.0]), np.array([3, 1]), q=0.25).tolist()
        [1.5, 9.0]
    """
    require_range("q", q, 0.0, 1.0)
    flat = _flatten(values, length, real=True)
    xp = flat.xp
    position = (flat.length - 1) * q
    low = np.floor(position).astype(np.int64)
    weight = flat.place(position - low)
    # Behind the last token lies one NaN, for empty rollouts. Where the weight is 0, `right` is the
    # next rollout's or that NaN, and not used.
    behind = int(flat.length.sum())
    at = np.where(flat.length > 0, flat.start() + low, behind)
    padded = xp.concat([xp.take(flat.values, _order(flat)), flat.place(np.array([np.nan]))])
    left = xp.take(padded, flat.place(at))
    right = xp.take(padded, flat.place(np.minimum(at + 1, behind)))
    with np.errstate(invalid="ignore"):  # inf * 0 on the branch that `where` leaves out
        between = left * (1 - weight) + right * weight
    result = xp.where((weight == 0) | (left == right), left, between)
    result = xp.where(_holds_nan(flat), flat.place(np.array(np.nan)), result)
    return flat.give(result, len(length))


def segment_normalize(
    values: Shaped[Array, "*lead token"], length: Integer[Array, " rollout"]
) -> Float[Array, "*lead token"]:
    """Scale the values of each rollout to mean 1 over its tokens: values * length / sum. No unit.

    Single values may be negative and keep their sign. Ones stay ones to the last bit. Arguments as
    in `segment_sum`.

    Raises:
        SchemaError: the sum of a rollout is 0 up to rounding, negative or infinite, `length` and
            `values` do not belong together, or `values` is not a real array.

    Example:
        >>> segment_normalize(np.array([1.0, 3.0, 5.0]), np.array([2, 1])).tolist()
        [0.5, 1.5, 1.0]
    """
    flat = _flatten(values, length, real=True)
    xp, total, owner = flat.xp, _sum(flat), flat.owner
    # A sum that is all rounding (0.1 + 0.2 - 0.3) counts as 0; an infinite one is refused with it.
    rounding = np.finfo(np.float64).eps * flat.length
    size = _sum(flat, xp.abs(flat.values))
    refused = (total <= flat.place(rounding) * size) & flat.place(flat.length > 0)
    if bool(xp.any(refused)):
        first, count = int(xp.nonzero(refused)[0][0]), int(xp.sum(refused))
        *row, rollout = (int(i) for i in np.unravel_index(first, (*flat.lead, len(length))))
        raise SchemaError(
            f"`values` needs a positive, finite sum in every rollout; rollout {rollout}"
            f"{f' of row {row}' if row else ''} sums to {float(total[first])}, and {count - 1} "
            "more are refused. Leave them out, or give their tokens equal positive values."
        )
    scaled = flat.values * xp.take(flat.place(flat.length), owner) / xp.take(total, owner)
    return flat.give(scaled, values.shape[-1])


def _namespace(name: str, array: Array) -> Namespace:
    """Give the array-API namespace of a NumPy or PyTorch array."""
    try:
        xp = array_namespace(array)
    except TypeError:
        xp = None
    if xp is None or not (is_numpy_namespace(xp) or is_torch_namespace(xp)):
        raise SchemaError(
            f"`{name}` needs a NumPy or PyTorch array; it is a {type(array).__name__}. "
            "Give `.values` of a DataArray, `np.asarray` of a list."
        )
    return xp


def _host(
    length: Integer[Array, " rollout"], total: int | None = None
) -> Int64[np.ndarray, " rollout"]:
    """Check lengths of any library and device; bring them to the host, for they steer all."""
    host = np.asarray(to_device(length, "cpu"))
    require_lengths("length", host, int(host.sum()) if total is None else total)
    return host.astype(np.int64)


def _flatten(values: Array, length: Array, *, real: bool = False) -> _Flat:
    """Check values against lengths and lay their rows back to back, as float64.

    Integers and booleans become int64 instead where `real` is not asked for.
    """
    xp = _namespace("values", values)
    whole = xp.isdtype(values.dtype, ("bool", "integral"))
    if values.ndim == 0 or not (whole or xp.isdtype(values.dtype, "real floating")):
        raise SchemaError(
            f"`values` needs real numbers with the tokens in the last dim; it has dtype "
            f"{values.dtype} and shape {tuple(values.shape)}. Give one real number a token."
        )
    host = _host(length, values.shape[-1])
    lead = tuple(values.shape[:-1])
    rows = int(np.prod(lead, dtype=np.int64))
    wide = xp.int64 if whole and not real else xp.float64
    flat = xp.reshape(xp.astype(values, wide, copy=False), (rows * values.shape[-1],))
    return _Flat(xp, flat, np.tile(host, rows), lead, wide if whole else values.dtype)


def _sum(flat: _Flat, values: Shaped[Array, " flat"] | None = None) -> Shaped[Array, " segment"]:
    """Sum each segment of the values, or of others in their place, in float64 or int64."""
    values = flat.values if values is None else values
    total = flat.xp.astype(flat.place(np.zeros(flat.length.size)), values.dtype)
    if is_torch_namespace(flat.xp):
        return total.index_add(0, flat.owner, values)
    # Starts of filled segments only: for an empty one `reduceat` gives the next segment's value.
    filled = flat.length > 0
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as in PyTorch
        total[filled] = np.add.reduceat(values, flat.start()[filled])
    return total


def _extreme(flat: _Flat, *, largest: bool) -> Float64[Array, " segment"]:
    """Give the largest or smallest value of each segment; NaN where it is empty."""
    result = flat.place(np.full(flat.length.size, -np.inf if largest else np.inf))
    filled = flat.length > 0
    if is_torch_namespace(flat.xp):
        result = result.scatter_reduce(0, flat.owner, flat.values, "amax" if largest else "amin")
    else:
        reduce = np.maximum if largest else np.minimum
        result[filled] = reduce.reduceat(flat.values, flat.start()[filled])
    return flat.xp.where(flat.place(filled), result, flat.place(np.array(np.nan)))


def _order(flat: _Flat) -> Int64[Array, " flat"]:
    """Sort by segment and within it by value, NaN last; equal values keep their order."""
    by_value = flat.xp.argsort(flat.values, stable=True)
    # The second sort is stable, so that it keeps the order of values inside each segment.
    by_segment = flat.xp.argsort(flat.xp.take(flat.owner, by_value), stable=True)
    return flat.xp.take(by_value, by_segment)


def _holds_nan(flat: _Flat) -> Bool[Array, " segment"]:
    """Say which segments hold a NaN."""
    return _sum(flat, flat.xp.astype(flat.xp.isnan(flat.values), flat.xp.int64)) > 0
