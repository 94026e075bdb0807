"""Attention over the KV cache: query heads are folded into the query length, so that nothing is copied; masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specchat.engine.backends.cache_attention import COUNTERS, CacheRows, attend
from specchat.engine.cache.cache_probe import CacheProbe, HandedOut
from specchat.engine.cache.kv_cache import CacheView, StaticView
from specchat.engine.decoding.tree_mask import TreeMask, TreePart

NAME = "slot_cache"


class PassLayout(NamedTuple):
    """Facts about a pass that `slot_attention` cannot see in its arguments."""

    places: Sequence[int] = ()
    """Places of the rows among the slots whose keys and values are given, if there are more slots than rows."""
    causal: bool = False
    """Whether query i of T is known to attend to columns 0 to S - T + i, so that no mask is read."""
    folded: dict[int, int] | None = None
    """Filled with the number of query heads per key head, H / G, of each layer that attends."""


_USUAL = PassLayout()
_layout: ContextVar[PassLayout] = ContextVar("layout", default=_USUAL)


@contextmanager
def laid_out(layout: PassLayout) -> Iterator[None]:
    """Let attention know the layout of the passes in this context."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cache_rows: CacheRows | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention in transformers' calling convention.

    Args:
        module: the layer.
        query: [B, H, T, D].
        key: [B, G, S, D] with H a multiple of G; of more slots with `PassLayout.places`; the whole cache
            [slots, G, columns, D] with `cache_rows`.
        value: [B, G, S, Dv], Dv the head size of values.
        attention_mask: bool [B, 1, H/G·T, S], True where a query may attend; None for one query that attends to all;
            uint8 [B, 1, T, S] with `cache_rows`.
        scaling: factor on the scores; None for 1/√D.
        cache_rows: where the rows are in the cache.
        sliding_window: of the layer.

    Returns:
        [B, T, H, Dv], and None for the weights.

    Raises:
        RuntimeError: the model's layers do not pass `cache_rows`.
    """
    if attention_mask is not None and attention_mask.dtype is torch.uint8:
        if cache_rows is None:
            raise RuntimeError("the model's layers do not pass on where the rows are")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, attention_mask, *cache_rows, scale, sliding_window or 0), None
    # Compiled layers are static ones, whose rows lie together; the compiler knows no context variables.
    layout = _USUAL if torch.compiler.is_compiling() else _layout.get()
    if layout.folded is not None:
        layout.folded[getattr(module, "layer_idx", 0)] = query.shape[1] // key.shape[1]
    key, value = _plain(key), _plain(value)
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    attend_to = partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling)
    if layout.causal and has_flash_attention(query, key, value):
        attention_mask, folded = causal_lower_right(length, key.shape[2]), query
        attend_to = partial(attend_to, enable_gqa=True)
    else:
        folded = query.reshape(batch, groups, heads // groups * length, size)
    if layout.places:  # a call for each row costs less than a copy of what it reads
        shared = attention_mask is None or isinstance(attention_mask, CausalBias)
        masks = [attention_mask] * batch if shared else attention_mask.split(1)  # type: ignore[union-attr]
        rows = zip(folded.split(1), layout.places, masks, strict=True)  # type: ignore[no-untyped-call]
        out = torch.cat([attend_to(row, key[at : at + 1], value[at : at + 1], mask) for row, at, mask in rows])
    else:
        out = attend_to(folded, key, value, attention_mask)
    return out.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def has_flash_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the device has a flash attention kernel for these tensors, which reads no mask."""
    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, True))


def _plain(handed_out: Tensor) -> Tensor:
    """The plain tensor of keys or values that have come here."""
    if not isinstance(handed_out, HandedOut):
        return handed_out
    handed_out.attended = True
    return handed_out.plain


ALL_ATTENTION_FUNCTIONS.register(NAME, slot_attention)


class AttentionMasks:
    """Masks of one network: per layer type, if it mixes full and sliding windows.

    Args:
        config: of the network.
        folds: whether attention is `slot_attention`; else it is the network's own.
        dtype: of the network.
        device: of the network.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, *, folds: bool) -> None:
        self._folds, self._dtype, self._device = folds, dtype, device
        self._layer_types = getattr(config, "layer_types", None)
        self._folded: dict[str, int] = {}
        """H / G of each layer type, or of all; 1 while that is not known, which is right for one token."""
        window, types = getattr(config, "sliding_window", None), set(self._layer_types or ())
        self._window: int | None = None if types and "sliding_attention" not in types else window
        self._by_type = bool(types)
        self._recurrent = types - {"full_attention", "sliding_attention"}
        """Layer types with recurrent layers, which get no mask."""
        self._counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)

    def learn(self, heads: Mapping[int, int]) -> None:
        """Learn how many query heads share a key head in each layer, which may differ between layer types."""
        for layer, count in heads.items():
            self._folded[self._layer_types[layer] if self._layer_types else "all"] = count

    def of(
        self, written: Tensor, view: CacheView | StaticView | CacheProbe, tree_mask: TreeMask | TreePart | None = None
    ) -> Tensor | dict[str, Tensor | None]:
        """The mask of tokens written to columns [B, T], for the S columns of a view."""
        columns = torch.arange(view.length, device=self._device)

        def seen(window: int | None) -> Tensor:
            if tree_mask is not None:
                return tree_mask.visibility(written, columns, window)
            before = columns <= written[:, None, :, None]
            return before if window is None else before & (columns > written[:, None, :, None] - window)

        def shaped(window: int | None, kind: str = "") -> Tensor:
            if isinstance(view, StaticView) and view.whole:
                return seen(window).view(torch.uint8)
            return self._shaped(seen(window), self._folded.get(kind) or max(self._folded.values(), default=1))

        if not self._by_type or (self._window is None and not self._recurrent):
            return shaped(self._window)
        full, near = "full_attention", "sliding_attention"
        sliding = {} if self._window is None else {near: shaped(self._window, near)}
        return {full: shaped(None, full), **sliding, **dict.fromkeys(("linear_attention", "conv"))}

    def are_causal(self, length: int) -> bool:
        """Whether chains attend to everything before them among the first `length` columns."""
        return self._window is None or length <= self._window

    def rows(self, written: Tensor, view: CacheView | StaticView) -> dict[str, CacheRows]:
        """Further arguments of the network's attention, for tokens written to columns [B, T]."""
        if not (isinstance(view, StaticView) and view.whole):
            return {}
        return {"cache_rows": CacheRows(view.slots, written[:, 0].clone(), self._counters)}

    def _shaped(self, mask: Tensor, folded: int) -> Tensor:
        if self._folds:
            return mask.repeat(1, 1, folded, 1) if folded > 1 else mask
        blocked = torch.zeros(mask.shape, dtype=self._dtype, device=self._device)
        return blocked.masked_fill_(~mask, torch.finfo(self._dtype).min)
