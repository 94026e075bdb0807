"""Attention by `torch.nn.attention.flex_attention`: kernels that split over the cache and read no block beyond a row.

The usual kernels for a mask given as a tensor read all columns, and one block of the device works on each head. These
read the blocks of 128 columns that hold a row's tokens, several at once (Dong et al. 2024, "Flex Attention").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
"""Columns that kernels read together."""
_SMALLEST = 16
"""Head size that kernels take (`torch._inductor.kernel.flex.flex_attention`)."""


def is_available(device: torch.device, head_size: int) -> bool:
    """Whether these kernels are made for the device and heads of this size."""
    return device.type == "cuda" and head_size >= _SMALLEST


def block_mask(mask: Tensor, ends: Tensor, slots: Tensor, columns: int, total: int) -> BlockMask:
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
    """
    length, seen = mask.shape[2:]
    blocks, tiles = -(-seen // BLOCK), -(-length // BLOCK)
    count = torch.where(ends > seen, 1, (ends + BLOCK - 1) // BLOCK).clamp(1, blocks).to(torch.int32)
    own = slots[:, None] * (columns // BLOCK) + torch.arange(blocks, device=mask.device)
    # Kernels want as many entries as the whole cache has blocks; entries after `count` are not read.
    index = torch.nn.functional.pad(own, (0, total * columns // BLOCK - blocks)).to(torch.int32)

    def allowed(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:  # noqa: ARG001
        place = column - slots[row] * columns
        return mask[row, 0, query, place.clamp(0, seen - 1)] & (place >= 0) & (place < seen)

    return BlockMask.from_kv_blocks(
        count[:, None, None].expand(-1, 1, tiles).contiguous(),
        index[:, None, None].expand(-1, 1, tiles, -1).contiguous(),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(length, total * columns),
        compute_q_blocks=False,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    """[B, H, T, Dv] of queries [B, H, T, D], keys [1, G, n, D] and values [1, G, n, Dv], H a multiple of G."""
    kernel = flex_attention if torch.compiler.is_compiling() or query.device.type == "cpu" else _compiled()
    attended: Tensor = kernel(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return attended


@lru_cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)
