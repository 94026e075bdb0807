"""Attention over a KV cache by slot, without copying its rows: a custom operator of torch, a Triton kernel on a GPU.

torch's kernels for a mask given as a tensor take a copy of the rows' keys and values, and read as many columns of each
row as the longest one has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.device.gpu import processors

COUNTERS = 1 << 14
"""Numbers that the kernel counts in: one per row, key head and tile of queries."""


class CacheRows(NamedTuple):
    """Positions in the cache of the rows of a pass."""

    slots: Tensor
    """[B], int64, the slot of each row."""
    starts: Tensor
    """[B], int64, the column of its first token."""
    counters: Tensor
    """[`COUNTERS`], int32, zeros, which the kernel restores."""


@torch.library.custom_op("specchat::attend", mutates_args=())
def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    slots: Tensor,
    starts: Tensor,
    counters: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """Scaled dot-product attention [B, T, H, Dv] of new tokens to the columns of their rows; in torch on a CPU.

    Args:
        query: [B, H, T, D].
        keys: [slots, G, columns, D], H a multiple of G, with the keys of the new tokens.
        values: [slots, G, columns, Dv].
        visible: [B, 1, T, S], uint8, other than 0 where a query may attend to a column of the row's slot, itself at
            least. Rows that end beyond S are padding, whose results may be any numbers.
        slots: as in `CacheRows`, as are the next two.
        starts: columns of the rows' first tokens.
        counters: of the kernel.
        scale: factor on the scores.
        window: columns before its first token that a row attends to, at least; 0 for all.
    """
    del starts, counters, window
    (batch, heads, length, size), groups, seen = query.shape, keys.shape[1], visible.shape[-1]
    folded = query.reshape(batch, groups, heads // groups * length, size)
    mask = visible.bool().repeat(1, 1, heads // groups, 1)
    own, theirs = keys[slots, :, :seen], values[slots, :, :seen]
    attended = functional.scaled_dot_product_attention(folded, own, theirs, mask, scale=scale)
    return attended.view(batch, heads, length, -1).transpose(1, 2).contiguous()


@attend.register_fake
def _(query: Tensor, keys: Tensor, values: Tensor, *_: object) -> Tensor:  # noqa: ARG001
    batch, heads, length, _size = query.shape
    return query.new_empty(batch, length, heads, values.shape[-1])


@attend.register_kernel("cuda")
def _(query: Tensor, *others: Any) -> Tensor:
    from specchat.engine.backends.cache_attention_kernel import launch

    return launch(query, *others, processors=processors(query.device))
