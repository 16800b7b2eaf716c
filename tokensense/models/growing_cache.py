"""Keys and values with room ahead, so that a new token costs one write and no copy.

Reads  keys and values as a model's attention hands them to its cache.
Gives  growing_cache, a transformers cache; `batch_select_indices` drops or repeats its rows.
Source transformers' `DynamicCache`, which copies all it holds at every token.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64  # tokens of room that a full layer gets


class _GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its hook has no types
    """One layer: `keys` and `values` are views of the filled part of two buffers."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ANN401 (the call is transformers')
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:
        """Append along the token axis; all keys and values come back."""
        rows, filled = len(key_states), self.get_seq_length()
        total = filled + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [key_states[:, :, :0], value_states[:, :, :0]]
        if total > self.buffers[0].shape[-2]:
            self.buffers = [_longer(b[:rows, :, :filled], total + ROOM) for b in self.buffers]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, filled:total] = states
        return self._view(rows, total)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times.

        Rows that change their place and come from behind those that are left are moved within the
        buffer, which copies them alone.
        """
        left, filled = len(indices), self.get_seq_length()
        moved = (indices != torch.arange(left, device=indices.device)).nonzero()[:, 0]
        source = indices[moved]
        if bool((source >= left).all()):
            for buffer in self.buffers:
                buffer[moved, :, :filled] = buffer[source, :, :filled]
        else:
            self.buffers = [buffer[indices, :, :filled] for buffer in self.buffers]
        self._view(left, filled)

    def _view(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (buffer[:rows, :, :length] for buffer in self.buffers)
        self.keys, self.values = keys, values
        return keys, values


def growing_cache() -> Cache:
    """An empty cache for any model whose layers all attend to everything before them."""
    return Cache(layer_class_to_replicate=_GrowingLayer)


def _longer(states: Tensor, length: int) -> Tensor:
    """A buffer of `length` tokens that begins with `states`."""
    rows, heads, filled, width = states.shape
    buffer = states.new_empty(rows, heads, length, width)
    buffer[:, :, :filled] = states
    return buffer
