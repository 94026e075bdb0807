"""Views of the KV cache for passes of fixed shape: slots and positions are held on the device."""

from __future__ import annotations

from torch import Tensor

from specchat.engine.cache.kv_cache import KVCache, pages


class LayerView:
    """View of some slots and the first columns of one layer's cache.

    Args:
        keys, values: [slots, G, columns, D], the layer's whole cache.
        slots: [B], int64, the slot of each row; all of them in order, where there are as many rows as slots.
        length: S, columns attended over.
        positions: [B, T], columns that the pass writes; they may lie beyond S.
        paged: whether the whole cache is handed out, as pages.
    """

    is_compileable = False

    def __init__(
        self, keys: Tensor, values: Tensor, slots: Tensor, length: int, positions: Tensor, *, paged: bool
    ) -> None:
        self._keys = keys
        self._values = values
        self._slots = slots
        self._length = length
        self._positions = positions
        self._paged = paged

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return those of the rows [B, G, S, D], or the pages of all."""
        return self._write(self._keys, key), self._write(self._values, value)

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        stored[self._slots[:, None], :, self._positions] = new.transpose(1, 2)
        if self._paged:
            return pages(stored)
        seen = stored[:, :, : self._length]
        return seen if len(self._slots) == len(stored) else seen.index_select(0, self._slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self._length - self._positions.shape[1]


class StaticView:
    """View of some slots and the first columns of the KV cache, passed to transformers as `past_key_values`.

    Args:
        cache: the KV cache.
        slots: [B], int64, the slot of each row; all of them in order, where there are as many rows as slots.
        columns: S, columns attended over.
        positions: [B, T], columns that the pass writes.
        compiled: whether layers run compiled (`engine.backends.compile`).
    """

    is_compileable = False

    def __init__(
        self, cache: KVCache, slots: Tensor, columns: int, positions: Tensor, *, compiled: bool = False
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.length = columns
        self.compiled = compiled
        self.paged = False
        """Whether layers get the pages of the whole cache, of which the mask says where rows are."""
        self._positions = positions

    def layer(self, layer_idx: int) -> LayerView:
        """View of one layer."""
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        return LayerView(keys, values, self.slots, self.length, self._positions, paged=self.paged)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """As `LayerView.update`, for layer `layer_idx`."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As `LayerView.get_seq_length`."""
        return self.layer(layer_idx).get_seq_length()
