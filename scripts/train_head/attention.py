"""Attention of one token per row to the columns of the row's conversation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Signature of `scripts.train_head.row_attention.attend`."""


def attention(device: torch.device) -> Attend:
    """The kernel on a GPU, plain attention elsewhere."""
    if device.type == "cuda":
        from scripts.train_head.row_attention import attend  # Triton is there only with CUDA

        return attend
    return _attend


def _attend(query: Tensor, keys: Tensor, values: Tensor, begin: Tensor, column: Tensor) -> Tensor:
    at = torch.arange(keys.shape[2], device=keys.device)
    mask = (at >= begin[:, None]) & (at <= column)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask[:, None, None])
