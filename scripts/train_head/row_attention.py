"""Attention of one token per row to the columns of the row's conversation, as a Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64
"""Columns per step."""
_LEAST = 16
"""Fewest rows of a matrix product."""


def attend(query: Tensor, keys: Tensor, values: Tensor, begin: Tensor, column: Tensor) -> Tensor:
    """Attended values [R, G, H / G, D] of queries [R, G, H / G, D]; only the columns that a row attends to are read.

    Args:
        query: any strides, as it is copied if it is not contiguous; H / G at most 16.
        keys: [R, G, L, D], contiguous, as are the values: a copy would read all columns.
        values: [R, G, L, D].
        begin: [R], int64: the first column of each row.
        column: [1], int64: the last column of all rows.
    """
    rows, groups, folded, size = query.shape
    assert folded <= _LEAST
    assert keys.is_contiguous()
    assert values.is_contiguous()
    query = query.contiguous()  # the kernel computes addresses from the shape alone
    out = torch.empty_like(query)
    _attend[(rows, groups)](
        query, keys, values, out, begin, column, keys.shape[2], size**-0.5, groups, folded, size, _LEAST, _BLOCK
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    out,
    begin,
    column,
    length,
    scale,
    groups: tl.constexpr,
    folded: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
):
    at = tl.program_id(0) * groups + tl.program_id(1)
    heads, parts, columns = tl.arange(0, padded), tl.arange(0, size), tl.arange(0, block)
    first, last = tl.load(begin + tl.program_id(0)), tl.load(column)
    own = (at * folded + heads[:, None]) * size + parts[None]
    q = tl.load(query + own, mask=heads[:, None] < folded, other=0.0)
    most = tl.full([padded], float("-inf"), tl.float32)
    total = tl.zeros([padded], tl.float32)
    mixed = tl.zeros([padded, size], tl.float32)
    for start in range(first // block * block, last + 1, block):
        place = start + columns
        inside = (place >= first) & (place <= last)
        where = (at * length + place[:, None]) * size + parts[None]
        k = tl.load(keys + where, mask=inside[:, None], other=0.0)
        v = tl.load(values + where, mask=inside[:, None], other=0.0)
        scores = tl.where(inside[None], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        now = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        kept = tl.exp(most - now)
        total = total * kept + tl.sum(weights, 1)
        mixed = mixed * kept[:, None] + tl.dot(weights.to(v.dtype), v)
        most = now
    tl.store(out + own, (mixed / total[:, None]).to(q.dtype), mask=heads[:, None] < folded)
