"""Views of the KV cache for passes of fixed shape: slots and positions are held on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specchat.engine.cache.kv_cache import KVCache


@dataclass(eq=False)
class LayerView:
    """View of some slots and the first columns of one layer's cache."""

    keys: Tensor
    """[slots, G, columns, D], the layer's whole cache."""
    values: Tensor
    slots: Tensor
    """[B], int64, the slot of each row; all of them in order, where there are as many rows as slots."""
    length: int
    """S, columns attended over."""
    positions: Tensor
    """[B, T], columns that the pass writes; they may lie beyond S."""
    whole: bool
    """Whether the whole cache is handed out."""
    is_compileable: ClassVar[bool] = False

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return the keys and values of the rows [B, G, S, D], or of all slots."""
        return self._write(self.keys, key), self._write(self.values, value)

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        stored[self.slots[:, None], :, self.positions] = new.transpose(1, 2)
        if self.whole:
            return stored
        seen = stored[:, :, : self.length]
        return seen if len(self.slots) == len(stored) else seen.index_select(0, self.slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self.length - self.positions.shape[1]


@dataclass(eq=False)
class StaticView:
    """View of some slots and the first columns of the KV cache, passed to transformers as `past_key_values`."""

    cache: KVCache
    slots: Tensor
    """[B], int64, the slot of each row; all of them in order, where there are as many rows as slots."""
    length: int
    """S, columns attended over."""
    positions: Tensor
    """[B, T], columns that the pass writes."""
    compiled: bool = False
    """Whether layers run compiled (`engine.backends.captured_passes`)."""
    whole: bool = False
    """Whether layers get the whole cache, for `engine.backends.cache_attention`."""
    is_compileable: ClassVar[bool] = False

    def layer(self, layer_idx: int) -> LayerView:
        """View of one layer."""
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        return LayerView(keys, values, self.slots, self.length, self.positions, self.whole)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write and return keys and values of layer `layer_idx` (`LayerView.update`)."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this pass (`LayerView.get_seq_length`)."""
        return self.layer(layer_idx).get_seq_length()
