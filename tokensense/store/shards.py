"""A shard file of zarr v3, written straight from an array in memory.

Reads  an array that holds one shard's numbers, the zarr array that it belongs to.
Gives  write_shard.
Sign   none of its own.

The same file as zarr's sharding codec would write, apart from the order of its chunks, which the
format leaves open: chunks in rows, each blosc and crc32c, then the index (offset and bytes of each
chunk, uint64) with its crc32c. zarr's own way copies each chunk through three buffers and an event
loop, a third of the rate; and assembly of a night's probing waits for it.

Source: zarr v3 codecs `sharding_indexed`, `blosc`, `crc32c`.
"""

from math import ceil
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from jaxtyping import Shaped
from numcodecs import Blosc

from tokensense.store.layout import COMPRESSION

ABSENT = np.uint64(2**64 - 1)


def write_shard(
    path: Path, shard: Shaped[np.ndarray, "row column"], array: "zarr.Array[Any]"
) -> None:
    """Write one shard; what is behind the array's end is padded as zarr does, or left absent.

    Args:
        path: of the file; its folders are made.
        shard: the shard's part of the array, contiguous rows.
        array: sharded, two dimensions, chunks of one row, the storage of `layout.storage`.
    """
    rows, columns = array.shards or array.chunks
    chunk = array.chunks[1]
    codec = Blosc(**COMPRESSION, shuffle=Blosc.BITSHUFFLE)
    index = np.full((rows, columns // chunk, 2), ABSENT, "<u8")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for row, values in enumerate(shard):
            for column in range(ceil(len(values) / chunk)):
                part = values[column * chunk : (column + 1) * chunk]
                if len(part) < chunk:
                    part = np.pad(part, (0, chunk - len(part)), constant_values=array.fill_value)
                data = codec.encode(part)
                index[row, column] = file.tell(), len(data) + 4
                file.write(data + _checksum(data))
        table = index.tobytes()
        file.write(table + _checksum(table))


def _checksum(data: bytes) -> bytes:
    """crc32c, as the codec of that name lays it behind what it protects."""
    return int(google_crc32c.value(data)).to_bytes(4, "little")
