"""Attention over the KV cache: query heads are folded into the query length, so that nothing is copied; masks.

On a GPU passes of fixed shape attend by `torch.nn.attention.flex_attention`: the usual kernels for a mask given as a
tensor read all columns, and one block of the device works on each head. These read the blocks of 128 columns that hold
a row's tokens, several at once (Dong et al. 2024, "Flex Attention").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specchat.engine.cache.cache_probe import CacheProbe, HandedOut
from specchat.engine.cache.kv_cache import CacheView
from specchat.engine.cache.static_view import StaticView
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePart

BLOCK = 128
"""Columns that kernels read together."""
_SMALLEST = 16
"""Head size that kernels take (`torch._inductor.kernel.flex.flex_attention`)."""
_TILE, _WIDE = 64, 128
"""Queries that a block of the device holds; half as many where heads are larger than the second number. By itself the
kernel holds as many as the longest pass has in two warps, whose registers are too few."""
_POWERS = 1, 2, 4, 8
"""Query heads per key head that the kernel for decoding takes, as far as they are used here."""
_SHORT = 128
"""Query length up to which the kernel for decoding is chosen, which shares a row's columns among several blocks of the
device (`torch._inductor.kernel.flex.flex_decoding`)."""


def has_block_kernels(device: torch.device, probe: CacheProbe) -> bool:
    """Whether these kernels are made for the device and the heads of a model."""
    return device.type == "cuda" and all(size >= _SMALLEST for _, size, _, _ in probe.shapes.values())


def block_mask(mask: Tensor, ends: Tensor, slots: Tensor, columns: int, total: int, folded: int = 1) -> BlockMask:
    """An attention mask over the pages of a cache (`engine.cache.kv_cache.pages`), in the form that kernels take.

    The blocks of a row are those of its slot, as in a paged cache (Kwon et al. 2023, "PagedAttention") whose sequences
    each have one stretch of it.

    Args:
        mask: [B, 1, T, S], bool, whether a query may attend to a column of the row's slot.
        ends: [B], int64, the columns of each row: beyond them its mask is False. Rows that end beyond S are padding,
            of which one block is read.
        slots: [B], int64.
        columns: of a slot, a multiple of `BLOCK`.
        total: slots of the cache.
        folded: H / G.
    """
    length, seen = mask.shape[2:]
    queries = folded // _heads_apart(folded, length) * length
    blocks, tiles = -(-seen // BLOCK), -(-queries // BLOCK)
    count = torch.where(ends > seen, 1, (ends + BLOCK - 1) // BLOCK).clamp(1, blocks).to(torch.int32)
    own = slots[:, None] * (columns // BLOCK) + torch.arange(blocks, device=mask.device)
    # Kernels want as many entries as the whole cache has blocks; entries after `count` are not read.
    index = torch.nn.functional.pad(own, (0, total * columns // BLOCK - blocks)).to(torch.int32)

    def allowed(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:  # noqa: ARG001
        place = column - slots[row] * columns
        return mask[row, 0, query % length, place.clamp(0, seen - 1)] & (place >= 0) & (place < seen)

    return BlockMask.from_kv_blocks(
        count[:, None, None].expand(-1, 1, tiles).contiguous(),
        index[:, None, None].expand(-1, 1, tiles, -1).contiguous(),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(queries, total * columns),
        compute_q_blocks=False,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    """[B, H, T, Dv] of queries [B, H, T, D], keys [1, G, n, D] and values [1, G, n, Dv], H a multiple of G.

    Query heads are folded into the query length, as far as the kernel for decoding takes it; the rest are a power of
    two, as it takes no other H / G.
    """
    (batch, heads, length, size), groups = query.shape, key.shape[1]
    apart = _heads_apart(heads // groups, length)
    short = query.reshape(batch, groups * apart, -1, size)
    torch._dynamo.mark_static(short, 0)  # the kernel for decoding is made for a number of rows
    kernel = flex_attention if torch.compiler.is_compiling() or query.device.type == "cpu" else _compiled()
    options = {"BLOCK_M": _TILE if size <= _WIDE else _TILE // 2, "num_warps": 4} if length > 1 else None
    attended: Tensor = kernel(
        short, key, value, block_mask=mask, scale=scale, enable_gqa=apart > 1, kernel_options=options
    )
    return attended.reshape(batch, heads, length, -1)


def _heads_apart(folded: int, length: int) -> int:
    """Into how many heads the H / G query heads of a key head are folded, so that the query length stays short."""
    return next((n for n in _POWERS if folded % n == 0 and folded // n * length < _SHORT), 1)


@lru_cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)


NAME = "slot_cache"


_places: ContextVar[Sequence[int]] = ContextVar("places", default=())
_observed: ContextVar[dict[int, int] | None] = ContextVar("observed", default=None)


@contextmanager
def observed() -> Iterator[dict[int, int]]:
    """Query heads per key head, H / G, of each layer that attends in here."""
    found: dict[int, int] = {}
    token = _observed.set(found)
    try:
        yield found
    finally:
        _observed.reset(token)


@contextmanager
def scattered(places: Sequence[int]) -> Iterator[None]:
    """Passes in here get keys and values of more slots than they have rows, which are at these places."""
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention in transformers' calling convention.

    Args:
        module: the layer.
        query: [B, H, T, D].
        key: [B, G, S, D] with H a multiple of G; of more slots where rows are `scattered`;
            [1, G, n, D] with the columns of all slots where the mask is one of
            `engine.backends.attention.block_mask`.
        value: [B, G, S, Dv], Dv the head size of values.
        attention_mask: bool [B, 1, H/G·T, S], True where a query may attend; None for one query that attends to all; or
            that of `block_mask`.
        scaling: factor on the scores; None for 1/√D.

    Returns:
        [B, T, H, Dv], and None for the weights.
    """
    if isinstance(attention_mask, BlockMask):
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    # Compiled layers are static ones, whose rows lie together; the compiler knows no context variables.
    places = () if torch.compiler.is_compiling() else _places.get()
    if not torch.compiler.is_compiling() and (found := _observed.get()) is not None:
        found[getattr(module, "layer_idx", 0)] = query.shape[1] // key.shape[1]
    key, value = _plain(key), _plain(value)
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    folded = query.reshape(batch, groups, heads // groups * length, size)
    attend_to = partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling)
    if places:  # a call for each row costs less than a copy of what it reads
        masks = [None] * batch if attention_mask is None else attention_mask.split(1)  # type: ignore[no-untyped-call]
        rows = zip(folded.split(1), places, masks, strict=True)  # type: ignore[no-untyped-call]
        out = torch.cat([attend_to(row, key[at : at + 1], value[at : at + 1], mask) for row, at, mask in rows])
    else:
        out = attend_to(folded, key, value, attention_mask)
    return out.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def _plain(handed_out: Tensor) -> Tensor:
    """Keys or values that have come here; the same, plain."""
    if not isinstance(handed_out, HandedOut):
        return handed_out
    handed_out.attended = True
    return handed_out.plain


ALL_ATTENTION_FUNCTIONS.register(NAME, slot_attention)


Mask = Tensor | BlockMask


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

    def learn(self, heads: Mapping[int, int]) -> None:
        """Learn how many query heads share a key head in each layer, which may differ between layer types."""
        for layer, count in heads.items():
            self._folded[self._layer_types[layer] if self._layer_types else "all"] = count

    def of(
        self, written: Tensor, view: CacheView | StaticView | CacheProbe, tree_mask: TreeMask | TreePart | None = None
    ) -> Mask | dict[str, Mask | None]:
        """The mask of tokens written to columns [B, T], for the S columns of a view."""
        columns = torch.arange(view.length, device=self._device)

        def seen(window: int | None) -> Tensor:
            if tree_mask is not None:
                return tree_mask.visibility(written, columns, window)
            before = columns <= written[:, None, :, None]
            return before if window is None else before & (columns > written[:, None, :, None] - window)

        def shaped(window: int | None, kind: str = "") -> Mask:
            folded = self._folded.get(kind) or max(self._folded.values(), default=1)
            if not (isinstance(view, StaticView) and view.paged):
                return self._shaped(seen(window), folded)
            cache = view.cache
            return block_mask(seen(window), written[:, -1] + 1, view.slots, cache.columns, cache.slots, folded)

        if not self._by_type or (self._window is None and not self._recurrent):
            return shaped(self._window)
        full, near = "full_attention", "sliding_attention"
        sliding = {} if self._window is None else {near: shaped(self._window, near)}
        return {full: shaped(None, full), **sliding, **dict.fromkeys(("linear_attention", "conv"))}

    def _shaped(self, mask: Tensor, folded: int) -> Tensor:
        if self._folds:
            return mask.repeat(1, 1, folded, 1) if folded > 1 else mask
        blocked = torch.zeros(mask.shape, dtype=self._dtype, device=self._device)
        return blocked.masked_fill_(~mask, torch.finfo(self._dtype).min)
