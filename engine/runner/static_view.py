"""Views of the KV cache for passes of fixed shape: written at positions that are held on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.engine.runner.kv_cache import KVCache


class LayerView:
    """View of the first rows and columns of one layer's cache, written at positions held on the device.

    Args:
        keys, values: [slots, G, columns, D], the layer's whole cache.
        rows: B, slots that take part.
        length: S, columns attended over.
        index: [B, 1], the slots.
        positions: [B, T], columns that the pass writes; they may lie beyond S.
    """

    is_compileable = False

    def __init__(self, keys: Tensor, values: Tensor, rows: int, length: int, index: Tensor, positions: Tensor) -> None:
        self._keys = keys
        self._values = values
        self._rows = rows
        self._length = length
        self._index = index
        self._positions = positions

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return the first B rows and S columns."""
        self._keys[self._index, :, self._positions] = key.transpose(1, 2)
        self._values[self._index, :, self._positions] = value.transpose(1, 2)
        return self._keys[: self._rows, :, : self._length], self._values[: self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self._length - self._positions.shape[1]


class StaticView:
    """View of the first rows and columns of the KV cache, passed to transformers as `past_key_values`.

    Args:
        cache: the KV cache.
        rows: B, slots that take part.
        columns: S, columns attended over.
        positions: [B, T], columns that the pass writes.
        compiled: whether layers run compiled (`engine.runner.compile`).
    """

    is_compileable = False

    def __init__(self, cache: KVCache, rows: int, columns: int, positions: Tensor, *, compiled: bool = False) -> None:
        self._cache = cache
        self._rows = rows
        self.length = columns
        self.compiled = compiled
        self._positions = positions
        self._index = torch.arange(rows, device=positions.device)[:, None]

    def layer(self, layer_idx: int) -> LayerView:
        """View of one layer."""
        keys, values = self._cache.keys[layer_idx], self._cache.values[layer_idx]
        return LayerView(keys, values, self._rows, self.length, self._index, self._positions)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """As `LayerView.update`, for layer `layer_idx`."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As `LayerView.get_seq_length`."""
        return self.layer(layer_idx).get_seq_length()
