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

_BLOCK = 128


def is_available(device: torch.device) -> bool:
    """Whether these kernels are made for the device."""
    return device.type == "cuda"


def block_mask(mask: Tensor, ends: Tensor) -> BlockMask:
    """An attention mask in the form that these kernels take.

    Args:
        mask: [B, 1, T, S], bool, whether a query may attend to a column.
        ends: [B], int64, the columns of each row: beyond them its mask is False.
    """
    rows, _, length, columns = mask.shape
    blocks = -(-columns // _BLOCK)
    count = ((ends + _BLOCK - 1) // _BLOCK).clamp(1, blocks).to(torch.int32)
    tiles = -(-length // _BLOCK)
    index = torch.arange(blocks, dtype=torch.int32, device=mask.device)

    def allowed(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:  # noqa: ARG001
        return mask[row, 0, query, column]

    return BlockMask.from_kv_blocks(
        count[:, None, None].expand(-1, 1, tiles).contiguous(),
        index.expand(rows, 1, tiles, -1).contiguous(),
        BLOCK_SIZE=_BLOCK,
        mask_mod=allowed,
        seq_lengths=(length, columns),
        compute_q_blocks=False,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    """[B, H, T, Dv] of queries [B, H, T, D], keys [B, G, S, D] and values [B, G, S, Dv], H a multiple of G."""
    kernel = flex_attention if torch.compiler.is_compiling() or query.device.type == "cpu" else _compiled()
    attended: Tensor = kernel(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return attended


@lru_cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)
