"""Shards written by hand are what zarr itself would write and read."""

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.store import layout
from tokensense.store.shards import write_shard


def arrays(folder, values, monkeypatch):
    """The same array twice: written by zarr, and shard by shard by us."""
    monkeypatch.setattr(layout, "SMALL", 0)
    monkeypatch.setattr(layout, "CHUNK", 8)
    monkeypatch.setattr(layout, "SHARD", 24)
    monkeypatch.setattr(layout, "CONDITIONS_PER_SHARD", 3)
    found = []
    for name in ("theirs", "ours"):
        found.append(
            zarr.create_array(
                folder / name, shape=values.shape, dtype=values.dtype, overwrite=True,
                config={"write_empty_chunks": True}, **layout.storage(values.shape, values.dtype),
            )
        )  # fmt: skip
    theirs, ours = found
    theirs[...] = values
    rows, columns = ours.shards
    for top in range(0, values.shape[0], rows):
        for left in range(0, values.shape[1], columns):
            key = ours.metadata.encode_chunk_key((top // rows, left // columns))
            shard = values[top : top + rows, left : left + columns]
            write_shard(folder / "ours" / key, np.ascontiguousarray(shard), ours)
    return theirs, ours


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 7), columns=st.integers(1, 60), kind=st.sampled_from("fi"))
def test_zarr_reads_what_was_written(tmp_path_factory, rows, columns, kind):
    folder = tmp_path_factory.mktemp("shards")
    values = np.random.default_rng(rows * columns).normal(size=(rows, columns))
    values = values.astype("<f4") if kind == "f" else (9 * values).astype("<i4")
    with pytest.MonkeyPatch.context() as patch:
        theirs, ours = arrays(folder, values, patch)
    np.testing.assert_array_equal(ours[...], values)
    np.testing.assert_array_equal(ours[-1, columns // 2 :], values[-1, columns // 2 :])
    # Chunks have the same bytes; only their order in the file is free.
    for path in sorted((folder / "theirs" / "c").rglob("*")):
        if path.is_file():
            mine = folder / "ours" / path.relative_to(folder / "theirs")
            assert chunks_of(mine, ours) == chunks_of(path, theirs, held=chunks_of(mine, ours))


def chunks_of(path, array, held=None):
    """Place -> bytes of each chunk of a shard; of those in `held` alone, if given.

    zarr also writes chunks that lie wholly behind the array's end.
    """
    raw = path.read_bytes()
    count = array.shards[0] * array.shards[1] // array.chunks[1]
    index = np.frombuffer(raw[-16 * count - 4 : -4], "<u8").reshape(count, 2)
    return {
        place: raw[start : start + size]
        for place, (start, size) in enumerate(index.tolist())
        if start != 2**64 - 1 and (held is None or place in held)
    }


@pytest.mark.parametrize("place", [5, -30, -3])
def test_a_damaged_shard_is_never_decoded(tmp_path, monkeypatch, place):
    _, ours = arrays(tmp_path, np.ones((2, 20), "<f4"), monkeypatch)
    file = tmp_path / "ours" / ours.metadata.encode_chunk_key((0, 0))
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(raw)
    with pytest.raises((ValueError, RuntimeError)):
        ours[...]
