"""Attention masks of a pass, in the form that a network's attention takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from specchat.engine.backends import flex
from specchat.engine.cache.cache_probe import CacheProbe
from specchat.engine.cache.kv_cache import CacheView
from specchat.engine.cache.static_view import StaticView
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePart

Mask = Tensor | BlockMask


class AttentionMasks:
    """Masks of one network: per layer type, if it mixes full and sliding windows.

    Args:
        config: of the network.
        folded: H / G where attention is `engine.backends.attention.slot_attention`; 0 where it is the network's own.
        dtype: of the network.
        device: of the network.
    """

    def __init__(self, config: Any, folded: int, dtype: torch.dtype, device: torch.device) -> None:
        self._folded, self._dtype, self._device = folded, dtype, device
        window, types = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())
        self._window: int | None = None if types and "sliding_attention" not in types else window
        self._by_type = bool(types)

    def of(
        self, written: Tensor, view: CacheView | StaticView | CacheProbe, tree_mask: TreeMask | TreePart | None = None
    ) -> Mask | dict[str, Mask]:
        """The mask of tokens written to columns [B, T], for the S columns of a view."""
        columns = torch.arange(view.length, device=self._device)

        def seen(window: int | None) -> Tensor:
            if tree_mask is not None:
                return tree_mask.visibility(written, columns, window)
            before = columns <= written[:, None, :, None]
            return before if window is None else before & (columns > written[:, None, :, None] - window)

        def shaped(window: int | None) -> Mask:
            if not (isinstance(view, StaticView) and view.paged):
                return self._shaped(seen(window))
            cache = view.cache
            return flex.block_mask(seen(window), written[:, -1] + 1, view.slots, cache.columns, cache.slots)

        if self._window is None or not self._by_type:
            return shaped(self._window)
        return {"full_attention": shaped(None), "sliding_attention": shaped(self._window)}

    def _shaped(self, mask: Tensor) -> Tensor:
        if self._folded > 0:
            return mask.repeat(1, 1, self._folded, 1) if self._folded > 1 else mask
        blocked = torch.zeros(mask.shape, dtype=self._dtype, device=self._device)
        return blocked.masked_fill_(~mask, torch.finfo(self._dtype).min)
