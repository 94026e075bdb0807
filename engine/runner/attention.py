"""Grouped-query attention over the KV cache: query heads are folded into the query length, so nothing is copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specchat.engine.runner.flex import attend

NAME = "slot_cache"


def slot_attention(
    module: torch.nn.Module,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention in transformers' calling convention.

    Args:
        module: the layer; not used.
        query: [B, H, T, D].
        key: [B, G, S, D] with H a multiple of G.
        value: [B, G, S, Dv], Dv the head size of values.
        attention_mask: bool [B, 1, H/G·T, S], True where a query may attend; None for one query that attends to all; or
            that of `engine.runner.flex`.
        scaling: factor on the scores; None for 1/√D.

    Returns:
        [B, T, H, Dv], and None for the weights.
    """
    if isinstance(attention_mask, BlockMask):
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    folded = query.reshape(batch, groups, heads // groups * length, size)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attention_mask, scale=scaling)
    return out.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, slot_attention)
