"""Grouped-query attention over the KV cache: query heads are folded into the query length, so nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specchat.engine.backends.flex import attend
from specchat.engine.cache.cache_probe import HandedOut
from specchat.engine.cache.kv_cache import Run

NAME = "slot_cache"
_runs: ContextVar[Sequence[Run]] = ContextVar("runs", default=())
"""Where the rows of the pass under way lie; nothing where keys and values are those of the rows, one by one."""


@contextmanager
def scattered(runs: Sequence[Run]) -> Iterator[None]:
    """Passes in here get keys and values of all slots from the first to the last of theirs (`CacheView.runs`)."""
    token = _runs.set(runs)
    try:
        yield
    finally:
        _runs.reset(token)


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
        module: the layer.
        query: [B, H, T, D].
        key: [B, G, S, D] with H a multiple of G; of more slots where rows are `scattered`, and of one, with the columns
            of all slots, where the mask is one of `engine.backends.flex`.
        value: [B, G, S, Dv], Dv the head size of values.
        attention_mask: bool [B, 1, H/G·T, S], True where a query may attend; None for one query that attends to all; or
            that of `engine.backends.flex`.
        scaling: factor on the scores; None for 1/√D.

    Returns:
        [B, T, H, Dv], and None for the weights.
    """
    if isinstance(attention_mask, BlockMask):
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    # Compiled layers are static ones, whose rows lie together; the compiler knows no context variables.
    runs = () if torch.compiler.is_compiling() else _runs.get()
    key, value = _attended(key), _attended(value)
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    folded = query.reshape(batch, groups, heads // groups * length, size)
    attend_to = partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling)
    if runs:  # a call for each run costs less than a copy of what it reads
        masks = [None if attention_mask is None else attention_mask[run.rows] for run in runs]
        parts = zip(runs, masks, strict=True)
        out = torch.cat([attend_to(folded[r.rows], key[r.slots], value[r.slots], mask) for r, mask in parts])
    else:
        out = attend_to(folded, key, value, attention_mask)
    return out.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def _attended(handed_out: Tensor) -> Tensor:
    """Keys or values that have come here; the same, plain."""
    if not isinstance(handed_out, HandedOut):
        return handed_out
    handed_out.attended = True
    return handed_out.plain


ALL_ATTENTION_FUNCTIONS.register(NAME, slot_attention)
