"""Per-rollout operations against plain loops, on NumPy and PyTorch side by side."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import rankdata

from tests.reference import segments as slow
from tokensense import segments
from tokensense.errors import SchemaError

NAN, INF = math.nan, math.inf
SMALL = 2.0**-10
MAKE: dict[str, Callable[..., Any]] = {"numpy": np.array, "torch": torch.tensor}
DTYPES = {
    ("numpy", 32): np.float32,
    ("numpy", 64): np.float64,
    ("torch", 32): torch.float32,
    ("torch", 64): torch.float64,
}
BOTH = pytest.mark.parametrize("library", ["numpy", "torch"])

PER_ROLLOUT = {
    "sum": (segments.segment_sum, slow.total),
    "mean": (segments.segment_mean, slow.mean),
    "max": (segments.segment_max, slow.largest),
    "min": (segments.segment_min, slow.smallest),
    "quantile": (
        lambda values, length: segments.segment_quantile(values, length, q=0.3),
        lambda tokens: slow.quantile(tokens, 0.3),
    ),
}
PER_TOKEN = {
    "ranks": (segments.segment_ranks, slow.ranks),
    "normalize": (segments.segment_normalize, slow.normalized),
}


def flat(library: str, values: list, bits: int = 64) -> Any:
    return MAKE[library](values, dtype=DTYPES[library, bits])


def lengths(library: str, values: list[int]) -> Any:
    return MAKE[library](values, dtype={"numpy": np.int32, "torch": torch.int32}[library])


def close(found: Any, expected: Any, name: str = "") -> None:
    np.testing.assert_allclose(
        np.asarray(found), np.asarray(expected), rtol=1e-12, atol=1e-12, err_msg=name
    )


class Ragged(NamedTuple):
    values: np.ndarray  # (..., token)
    length: list[int]


@st.composite
def ragged(draw: st.DrawFn, *, low: float = -8.0, specials: bool = False) -> Ragged:
    """Draw up to five rollouts of 0 to 6 tokens under up to two leading dims; ties are frequent."""
    length = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 6]), max_size=5))
    lead = draw(st.sampled_from([(), (1,), (2,), (2, 3), (0,)]))
    number = st.floats(low, 8.0, width=32) | st.sampled_from([max(low, 0.0), 0.5, 1.0, 2.0])
    if specials:
        number |= st.sampled_from([NAN, INF, -INF])
    count = math.prod(lead) * sum(length)
    flat_values = draw(st.lists(number, min_size=count, max_size=count))
    return Ragged(np.array(flat_values, dtype=np.float64).reshape(*lead, sum(length)), length)


def row_by_row(function: Callable, data: Ragged, last: int) -> np.ndarray:
    """Apply a reference to each leading row."""
    lead = data.values.shape[:-1]
    rows = [
        function([float(v) for v in data.values[place]], data.length) for place in np.ndindex(lead)
    ]
    return np.array(rows, dtype=np.float64).reshape(*lead, last)


# --- worked out by hand --------------------------------------------------------------------------


@BOTH
def test_empty_rollouts_take_nothing_from_their_neighbors(library: str):
    # rollout:       0    1 (two tokens)  2    3 (one)  4
    length = lengths(library, [0, 2, 0, 1, 0])
    values = flat(library, [3.0, -1.0, 7.0])
    assert segments.segment_sum(values, length).tolist() == [0.0, 2.0, 0.0, 7.0, 0.0]
    np.testing.assert_array_equal(segments.segment_mean(values, length), [NAN, 1, NAN, 7, NAN])
    np.testing.assert_array_equal(segments.segment_max(values, length), [NAN, 3, NAN, 7, NAN])
    np.testing.assert_array_equal(segments.segment_min(values, length), [NAN, -1, NAN, 7, NAN])
    np.testing.assert_array_equal(
        segments.segment_quantile(values, length, q=0.75), [NAN, 2, NAN, 7, NAN]
    )
    assert segments.segment_ranks(values, length).tolist() == [2.0, 1.0, 1.0]
    # mean of the first two is 1
    assert segments.segment_normalize(values, length).tolist() == [3.0, -1.0, 1.0]


@BOTH
def test_no_rollouts_no_tokens_no_rows(library: str):
    nothing, none = flat(library, []), lengths(library, [])
    assert segments.offsets(none).tolist() == [0]
    for count in ([], [0, 0]):
        length = lengths(library, count)
        assert segments.segment_sum(nothing, length).tolist() == [0.0] * len(count)
        for function in (segments.segment_mean, segments.segment_max, segments.segment_min):
            np.testing.assert_array_equal(function(nothing, length), [NAN] * len(count))
        np.testing.assert_array_equal(
            segments.segment_quantile(nothing, length, q=1.0), [NAN] * len(count)
        )
        assert segments.segment_ranks(nothing, length).tolist() == []
        assert segments.segment_normalize(nothing, length).tolist() == []
        assert segments.broadcast(flat(library, [1.0] * len(count)), length).tolist() == []


@BOTH
def test_ties_share_their_average_rank_and_zeros_of_either_sign_tie(library: str):
    # sorted: -1 | -0.0 0.0 | 2 2 2, ranks 1 | 2.5 2.5 | 5 5 5
    values = flat(library, [2.0, 0.0, 2.0, -1.0, -0.0, 2.0])
    length = lengths(library, [6])
    assert segments.segment_ranks(values, length).tolist() == [5.0, 2.5, 5.0, 1.0, 2.5, 5.0]


@BOTH
def test_equal_values_of_two_rollouts_do_not_tie(library: str):
    values = flat(library, [4.0, 4.0, 4.0])
    assert segments.segment_ranks(values, lengths(library, [1, 2])).tolist() == [1.0, 1.5, 1.5]


@BOTH
def test_an_infinite_neighbor_gives_itself(library: str):
    # positions 0.25 and 0.75 between -inf and 0, and between 0 and inf
    length = lengths(library, [2, 2])
    values = flat(library, [-INF, 0.0, 0.0, INF])
    for q in (0.25, 0.75):
        assert segments.segment_quantile(values, length, q=q).tolist() == [-INF, INF]


@BOTH
def test_a_quantile_at_a_token_is_that_token(library: str):
    # Position 1 of three is the middle one, whatever stands after it; equal tokens give themselves
    # to the last bit at any position (0.1 * 0.7 + 0.1 * 0.3 does not).
    length = lengths(library, [3, 1, 1, 4])
    values = flat(library, [INF, 2.0, -1.0, 7.0, -INF, 0.1, 0.1, 0.1, 0.1])
    for q in (0.5, 0.1, 0.23, 0.9, 1.0, 0.0):
        middle, single, infinite, equal = segments.segment_quantile(values, length, q=q).tolist()
        assert (single, infinite, equal) == (7.0, -INF, 0.1)
        if q in (0.0, 0.5, 1.0):
            assert middle == {0.0: -1.0, 0.5: 2.0, 1.0: INF}[q]


# --- precision, dtype, layout --------------------------------------------------------------------


@BOTH
def test_ten_million_float32_tokens_lose_nothing(library: str):
    # Adding 0.1 in float32 ten million times gives 1,087,937; the sum is 1,000,000.0149.
    values = np.full(10_000_001, 0.1, dtype=np.float32)
    values[-1] = 3.0
    length = lengths(library, [10_000_000, 0, 1])
    given_values = values if library == "numpy" else torch.from_numpy(values)
    total = segments.segment_sum(given_values, length)
    assert total.tolist() == [float(np.float32(1e7 * float(np.float32(0.1)))), 0.0, 3.0]
    assert segments.segment_mean(given_values, length)[0] == np.float32(0.1)


@BOTH
def test_a_large_rollout_does_not_round_the_next(library: str):
    # Differences of a cumulative sum would give 0 for the second rollout.
    values = flat(library, [1e17, 1.0, 1e17, -1.0])
    length = lengths(library, [1, 1, 1, 1])
    assert segments.segment_sum(values, length).tolist() == [1e17, 1.0, 1e17, -1.0]


@BOTH
@pytest.mark.parametrize("bits", [32, 64])
def test_floats_keep_their_dtype(library: str, bits: int):
    values, length = flat(library, [1.0, 2.0], bits), lengths(library, [2])
    for fast, _ in (*PER_ROLLOUT.values(), *PER_TOKEN.values()):
        assert fast(values, length).dtype == DTYPES[library, bits]
    assert segments.broadcast(values, lengths(library, [1, 3])).dtype == DTYPES[library, bits]


@BOTH
def test_booleans_are_counted_and_integers_read_as_float64(library: str):
    length = lengths(library, [3, 0, 1])
    moved = MAKE[library]([True, False, True, True])
    count = segments.segment_sum(moved, length)
    assert count.tolist() == [2, 0, 1]
    assert str(count.dtype).endswith("int64")
    assert segments.segment_mean(moved, length)[0] == 2 / 3
    bytes_ = MAKE[library](
        [200, 100, 50, 1], dtype={"numpy": np.uint8, "torch": torch.uint8}[library]
    )
    assert segments.segment_sum(bytes_, length).tolist() == [350, 0, 1]
    for name, (fast, _) in (PER_ROLLOUT | PER_TOKEN).items():
        if name != "sum":
            found = fast(bytes_, length)
            assert found.dtype == DTYPES[library, 64]
            close(found, fast(flat(library, [200.0, 100.0, 50.0, 1.0]), length), name)
    large = MAKE[library]([2**53, 1, 1, 5])
    assert segments.segment_sum(large, length)[0] == 2**53 + 2


@BOTH
def test_half_precision_is_summed_in_full(library: str):
    half = {"numpy": np.float16, "torch": torch.bfloat16}[library]
    # 300 ones: bfloat16 cannot count beyond 256 one by one, and rounds 300 exactly.
    values = MAKE[library]([1.0] * 300, dtype=half)
    assert float(segments.segment_sum(values, lengths(library, [300]))[0]) == 300.0


@BOTH
def test_strided_input_and_lengths_of_the_other_library(library: str):
    values = np.arange(12.0).reshape(4, 3).T  # (3, 4), not contiguous
    given_values = (
        values if library == "numpy" else torch.from_numpy(np.arange(12.0).reshape(4, 3)).T
    )
    other = lengths("torch" if library == "numpy" else "numpy", [1, 3])
    found = segments.segment_sum(given_values, other)
    assert found.tolist() == [[0.0, 18.0], [1.0, 21.0], [2.0, 24.0]]


@BOTH
def test_the_same_bytes_every_time(library: str):
    draw = np.random.default_rng(5)
    length = lengths(library, draw.integers(0, 400, size=500).tolist())
    values = flat(library, draw.normal(size=int(length.sum())) ** 2)
    for fast, _ in (*PER_ROLLOUT.values(), *PER_TOKEN.values()):
        first = np.asarray(fast(values, length)).tobytes()
        assert all(np.asarray(fast(values, length)).tobytes() == first for _ in range(3))


# --- what is not a number ------------------------------------------------------------------------


@BOTH
def test_opposite_infinities_are_nan_in_their_rollout_only(library: str):
    values = flat(library, [INF, -INF, 1.0, -INF])
    length = lengths(library, [2, 1, 1])
    np.testing.assert_array_equal(segments.segment_sum(values, length), [NAN, 1.0, -INF])


@BOTH
def test_a_float32_sum_beyond_its_range_is_inf(library: str):
    values = flat(library, [3e38, 3e38, 1.0], 32)
    assert segments.segment_sum(values, lengths(library, [2, 1])).tolist() == [INF, 1.0]


# --- normalization -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("bits", [32, 64])
def test_ones_stay_ones_to_the_last_bit(library: str, bits: int):
    # 1 / 49 * 49 is not 1 in floating point; 1 * 49 / 49 is.
    length = list(range(0, 200))
    ones = flat(library, [1.0] * sum(length), bits)
    assert set(segments.segment_normalize(ones, lengths(library, length)).tolist()) == {1.0}


@BOTH
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([1.0, 0.0, 0.0, 0.0, 0.0], "rollout 2 sums to 0.0, and 1 more"),
        ([1.0, 1.0, -3.0, 1.0, 1.0], "rollout 2 sums to -2.0, and 0 more"),
        ([1.0, INF, 1.0, 1.0, 1.0], "rollout 2 sums to inf, and 0 more"),
        ([1.0, -INF, 1.0, 1.0, 1.0], "rollout 2 sums to -inf, and 0 more"),
        # -0.3 + 0.1 + 0.2 is 2.8e-17 or 5.6e-17 in floating point, by order; it is 0
        ([1.0, 0.1, 0.2, -0.3, 0.0], "rollout 2 sums to .*e-17, and 0 more"),
    ],
)
def test_a_sum_that_is_not_positive_is_refused(library: str, values: list[float], named: str):
    # rollouts: one token, none, three or four, the rest
    length = [1, 0, 4, 0] if "e-17" in named else [1, 0, 2, 2]
    with pytest.raises(SchemaError, match=f"needs a positive, finite sum.*{named}.*Leave them out"):
        segments.segment_normalize(flat(library, values), lengths(library, length))


@BOTH
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_rollout_of_one_token_is_refused_as_any_other(library: str, value: float):
    with pytest.raises(SchemaError, match=f"rollout 1 sums to {value}"):
        segments.segment_normalize(flat(library, [1.0, value]), lengths(library, [1, 1, 0]))


@BOTH
def test_a_refused_sum_names_its_row(library: str):
    values = flat(library, [[[1.0, 1.0], [1.0, -1.0]]])
    with pytest.raises(SchemaError, match=r"rollout 0 of row \[0, 1\] sums to 0\.0"):
        segments.segment_normalize(values, lengths(library, [2]))


@BOTH
def test_small_positive_sums_are_not_refused(library: str):
    values = flat(library, [1e-300, 3e-300, 1.0, -1.0 + 1e-9])
    found = segments.segment_normalize(values, lengths(library, [2, 2]))
    close(found[:2], [0.5, 1.5])
    assert float(found[2]) == pytest.approx(2e9, rel=1e-6)


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        segments.segment_sum,
        segments.segment_mean,
        segments.segment_normalize,
        segments.segment_max,
        PER_ROLLOUT["quantile"][0],
    ],
)
def test_gradients_flow(function: Callable):
    # Two leading rows; the empty rollout in the middle gives NaN and must not give NaN gradients.
    length = torch.tensor([3, 0, 1])
    values = torch.tensor(
        [[0.3, 1.7, 0.9, 2.0], [1.0, 0.1, 0.2, 5.0]], dtype=torch.float64, requires_grad=True
    )

    def finite(tokens: torch.Tensor) -> torch.Tensor:
        return function(tokens, length).nan_to_num(0.0)

    assert torch.autograd.gradcheck(finite, (values,))
    finite(values).sum().backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()


def test_gradients_of_broadcast_add_up_over_the_tokens():
    values = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    segments.broadcast(values, torch.tensor([2, 0, 1])).sum().backward()
    assert values.grad.tolist() == [2.0, 0.0, 1.0]


def test_float32_gradients_come_back_in_float32():
    values = torch.tensor([2.0, 6.0], requires_grad=True)
    segments.segment_mean(values, torch.tensor([2])).sum().backward()
    assert values.grad.dtype == torch.float32
    assert values.grad.tolist() == [0.5, 0.5]


def test_ranks_carry_no_gradient():
    values = torch.tensor([2.0, 6.0], requires_grad=True)
    assert not segments.segment_ranks(values, torch.tensor([2])).requires_grad


# --- refusals ------------------------------------------------------------------------------------

TAKERS = [fast for fast, _ in (*PER_ROLLOUT.values(), *PER_TOKEN.values())]


@BOTH
@pytest.mark.parametrize("taker", TAKERS)
def test_lengths_that_do_not_fit_are_refused(library: str, taker: Callable):
    values = flat(library, [1.0, 2.0, 3.0])
    with pytest.raises(SchemaError, match="add up to the 3 tokens given; they add up to 4"):
        taker(values, lengths(library, [1, 3]))
    with pytest.raises(SchemaError, match="needs one non-negative integer a rollout"):
        taker(values, lengths(library, [4, -1]))


@BOTH
def test_negative_lengths_have_no_offsets(library: str):
    for function in (segments.offsets, segments.segment_index):
        with pytest.raises(SchemaError, match="needs one non-negative integer a rollout"):
            function(lengths(library, [2, -1]))


@BOTH
def test_broadcast_needs_one_value_a_rollout(library: str):
    with pytest.raises(SchemaError, match=r"an entry for each of the 2 rollouts.*shape is \(3,\)"):
        segments.broadcast(flat(library, [1.0, 2.0, 3.0]), lengths(library, [1, 1]))


@BOTH
def test_only_real_numbers_have_sums_and_ranks(library: str):
    for taker in TAKERS:
        with pytest.raises(SchemaError, match=r"real numbers.*complex64"):
            taker(
                MAKE[library](
                    [1j], dtype={"numpy": np.complex64, "torch": torch.complex64}[library]
                ),
                lengths(library, [1]),
            )


def test_labelled_arrays_are_refused_with_the_way_out():
    values = xr.DataArray([1.0, 2.0], dims="token")
    for taker in TAKERS:
        with pytest.raises(SchemaError, match=r"it is a DataArray\. Give `.values` of a DataArray"):
            taker(values, np.array([2]))


@pytest.mark.parametrize("q", [-0.1, 1.1, NAN])
def test_quantiles_outside_the_unit_interval_are_refused(q: float):
    with pytest.raises(SchemaError, match=r"`q` needs a value in \[0.0, 1.0\]"):
        segments.segment_quantile(np.array([1.0]), np.array([1]), q=q)


# --- against plain loops -------------------------------------------------------------------------


@BOTH
@given(data=ragged(specials=True))
def test_one_number_a_rollout_as_the_plain_loop(library: str, data: Ragged):
    values, length = flat(library, data.values), lengths(library, data.length)
    for name, (fast, plain) in PER_ROLLOUT.items():
        # fsum refuses inf - inf; IEEE, and both libraries, say NaN.
        opposed = name in ("sum", "mean")
        safe = lambda t, f=plain, o=opposed: NAN if o and {INF, -INF} <= set(t) else f(t)  # noqa: E731
        expected = row_by_row(
            lambda v, n, f=safe: slow.per_rollout(f, v, n), data, len(data.length)
        )
        found = fast(values, length)
        assert type(found) is type(values)
        close(found, expected, name)


@BOTH
@given(data=ragged(specials=True))
def test_ranks_as_the_plain_loop(library: str, data: Ragged):
    expected = row_by_row(
        lambda v, n: slow.per_token(slow.ranks, v, n), data, data.values.shape[-1]
    )
    found = segments.segment_ranks(flat(library, data.values), lengths(library, data.length))
    np.testing.assert_array_equal(np.asarray(found), expected)


@BOTH
@given(data=ragged(low=SMALL))
def test_normalized_as_the_plain_loop_and_mean_one(library: str, data: Ragged):
    expected = row_by_row(
        lambda v, n: slow.per_token(slow.normalized, v, n), data, data.values.shape[-1]
    )
    length = lengths(library, data.length)
    found = segments.segment_normalize(flat(library, data.values), length)
    close(found, expected)
    mean = np.asarray(segments.segment_mean(found, length))
    close(mean, np.broadcast_to(np.where(np.array(data.length) > 0, 1.0, NAN), mean.shape))


@BOTH
@given(data=ragged(), q=st.sampled_from([0.0, 0.05, 0.25, 1 / 3, 0.5, 0.9, 1.0]))
def test_quantiles_as_the_plain_loop_and_numpy(library: str, data: Ragged, q: float):
    found = segments.segment_quantile(
        flat(library, data.values), lengths(library, data.length), q=q
    )
    plain = lambda tokens: slow.quantile(tokens, q)  # noqa: E731
    close(found, row_by_row(lambda v, n: slow.per_rollout(plain, v, n), data, len(data.length)))
    theirs = lambda tokens: float(np.quantile(tokens, q)) if tokens else NAN  # noqa: E731
    close(found, row_by_row(lambda v, n: slow.per_rollout(theirs, v, n), data, len(data.length)))


@BOTH
@given(length=st.lists(st.integers(0, 6), max_size=6))
def test_offsets_index_and_broadcast_as_the_plain_loop(library: str, length: list[int]):
    given_length = lengths(library, length)
    start = segments.offsets(given_length)
    index = segments.segment_index(given_length)
    assert str(start.dtype).endswith("int64")
    assert str(index.dtype).endswith("int64")
    assert start.tolist() == [sum(length[:r]) for r in range(len(length) + 1)]
    owners = [r for r, count in enumerate(length) for _ in range(count)]
    assert index.tolist() == owners
    values = flat(library, [[10.0 * r for r in range(len(length))], [-1.0] * len(length)])
    assert segments.broadcast(values, given_length).tolist() == [
        [10.0 * r for r in owners],
        [-1.0 for _ in owners],
    ]


def test_larger_rollouts_as_scipy_and_numpy():
    draw = np.random.default_rng(3)
    length = np.array([0, 700, 1, 0, 1500, 2, 0])
    values = draw.integers(0, 90, size=2203) / 7.0  # many ties
    whole = [
        values[a:b] for a, b in zip(np.cumsum(length) - length, np.cumsum(length), strict=True)
    ]
    ranks = np.concatenate([rankdata(tokens) for tokens in whole])
    middle = [np.quantile(tokens, 0.37) if tokens.size else NAN for tokens in whole]
    for library in MAKE:
        given_values, given_length = flat(library, values), lengths(library, length)
        np.testing.assert_array_equal(segments.segment_ranks(given_values, given_length), ranks)
        close(segments.segment_quantile(given_values, given_length, q=0.37), middle)


@given(data=ragged(low=SMALL))
def test_inputs_stay_as_they_were(data: Ragged):
    for library in MAKE:
        values, length = flat(library, data.values), lengths(library, data.length)
        for fast, _ in (*PER_ROLLOUT.values(), *PER_TOKEN.values()):
            fast(values, length)
        np.testing.assert_array_equal(np.asarray(values), data.values)
        assert length.tolist() == data.length


@BOTH
@given(data=ragged(low=SMALL), at=st.integers(0, 10**6))
def test_a_nan_spoils_its_own_rollout_and_no_other(library: str, data: Ragged, at: int):
    assume(data.values.size > 0)
    length = lengths(library, data.length)
    spoiled = data.values.copy()
    spoiled.reshape(-1)[at % spoiled.size] = NAN
    *row, token = np.unravel_index(at % spoiled.size, spoiled.shape)
    owner = np.repeat(np.arange(len(data.length)), data.length)
    for name, (fast, _) in (PER_ROLLOUT | PER_TOKEN).items():
        clean = np.asarray(fast(flat(library, data.values), length))
        found = np.asarray(fast(flat(library, spoiled), length))
        own = np.zeros(clean.shape, dtype=bool)
        own[(*row, owner == owner[token] if name in PER_TOKEN else owner[token])] = True
        assert np.isnan(found[own]).all(), name
        np.testing.assert_array_equal(found[~own], clean[~own], err_msg=name)
