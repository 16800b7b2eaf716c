"""The growing cache hands out what transformers' `DynamicCache` does."""

import torch
from transformers import DynamicCache

from tokensense.models.growing_cache import ROOM, growing_cache


def test_it_holds_what_a_dynamic_cache_holds():
    draw = torch.Generator().manual_seed(0)
    ours, theirs = growing_cache(), DynamicCache()
    lengths = [5, 1, 1, ROOM, 1, 1, 1]  # the fourth outgrows the first room
    # After some steps: rows repeated, rows moved into the places of others, rows in another order.
    selections = {2: [3, 0, 0, 1, 2], 4: [0, 3, 2], 5: [1, 0]}
    rows = 4
    for step, length in enumerate(lengths):
        for layer in (0, 1):
            # Values may be wider than keys.
            keys, values = (torch.randn(rows, 2, length, w, generator=draw) for w in (3, 4))
            pairs = zip(
                ours.update(keys, values, layer), theirs.update(keys, values, layer), strict=True
            )
            assert all(torch.equal(a, b) for a, b in pairs)
        assert ours.get_seq_length() == theirs.get_seq_length() == sum(lengths[: step + 1])
        if step in selections:
            kept = torch.tensor(selections[step])
            rows = len(kept)
            for cache in (ours, theirs):
                cache.batch_select_indices(kept)


def test_a_token_that_has_room_is_written_where_the_buffer_lies():
    cache = growing_cache()
    keys = torch.zeros(1, 1, 1, 1)
    first, _ = cache.update(keys, keys, 0)
    last, _ = cache.update(keys, keys, 0)
    assert last.data_ptr() == first.data_ptr()
