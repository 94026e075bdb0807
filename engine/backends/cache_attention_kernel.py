"""The Triton kernel of `engine.backends.cache_attention.attend`.

A row's columns are split among several thread blocks, as in Dao et al. 2023, "Flash-Decoding": one row has too few
heads to occupy the device. Each block computes the softmax of its split (Dao et al. 2022, "FlashAttention", Algorithm
1); the last one to finish combines them, so that a layer needs one launch. The query heads of a key head, and a row's
tokens, are rows of one matrix product, so that keys and values are read once for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specchat.engine.device.gpu import starts_early

_LEAST = 16
"""Fewest rows and columns of a matrix product."""
_MOST = 64
"""Most queries of a tile, and most columns of a step."""
_TILE_BYTES = 16384
"""Most memory of a step's keys: two steps of keys and values fit into the shared memory of every supported card."""
_LOG2_E = 1.4426950408889634
_REGISTERS = 8192
"""Most numbers that a tile accumulates."""


def launch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    slots: Tensor,
    starts: Tensor,
    counters: Tensor,
    scale: float,
    window: int,
    *,
    processors: int,
) -> Tensor:
    """Launch the kernel for `engine.backends.cache_attention.attend`.

    Args:
        query: and the others as there.
        keys: any strides except along D, as are the values.
        values: of the cache.
        visible: the mask.
        slots: of the rows.
        starts: of the rows.
        counters: zeros, and zeros again afterwards.
        scale: factor on the scores.
        window: columns before a row.
        processors: of the device.

    Raises:
        ValueError: there are more rows and heads than counters.
    """
    (batch, heads, length, size), groups, seen = query.shape, keys.shape[1], visible.shape[-1]
    folded, size_out = heads // groups, values.shape[-1]
    padded, padded_out = (max(triton.next_power_of_2(each), _LEAST) for each in (size, size_out))
    most = min(_MOST, _REGISTERS // padded_out) if query.itemsize < 4 else _LEAST  # no matrix units for float32
    tile = max(min(triton.next_power_of_2(folded * length), most), _LEAST)
    step = max(min(_MOST, _TILE_BYTES // (padded * keys.itemsize)), _LEAST)
    tiles = triton.cdiv(folded * length, tile)
    if batch * groups * tiles > len(counters):
        raise ValueError(f"{batch} rows of {groups} heads are too many")
    splits = min(triton.cdiv(processors, batch * groups * tiles), triton.cdiv(seen, step))
    out = query.new_empty(batch, length, heads, size_out)
    sums = query.new_empty((batch * groups * tiles, splits, tile, size_out + 2), dtype=torch.float32)
    query, visible, early = _along(query), _along(visible), starts_early(query.device)
    _attend[splits, groups * tiles, batch](
        query, keys, values, visible, slots, starts, counters, sums, out,
        seen, scale * _LOG2_E, window,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3], visible.stride(0), visible.stride(2),
        length, folded, size, size_out, padded, padded_out, tile, step, tiles, early,
        num_warps=4, num_stages=2, launch_pdl=early,
    )  # fmt: skip
    return out


def _along(tensor: Tensor) -> Tensor:
    """The tensor, copied unless its last dimension is consecutive."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@triton.jit(do_not_specialize=("seen", "window"))  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, visible, slots, starts, counters, sums, out,
    seen, scale, window,
    query_row, query_head, query_token, key_slot, key_head, key_column, value_slot, value_head, value_column,
    visible_row, visible_token,
    length: tl.constexpr, folded: tl.constexpr, size: tl.constexpr, size_out: tl.constexpr,
    padded: tl.constexpr, padded_out: tl.constexpr, tile: tl.constexpr, step: tl.constexpr, tiles: tl.constexpr,
    early: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of one key head's queries to one split of a row's columns; grid [splits, G x tiles, B].

    `scale` includes log2(e), as exponentials are powers of 2.
    """
    split, splits = tl.program_id(0), tl.num_programs(0)
    head, row = tl.program_id(1) // tiles, tl.program_id(2)
    index = tl.program_id(1) % tiles * tile + tl.arange(0, tile)
    exists = index < folded * length
    own_head, token = head * folded + index // length, index % length
    parts, parts_out = tl.arange(0, padded), tl.arange(0, padded_out)

    if early:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    slot = tl.load(slots + row)
    begin, end, each, active = _divide(tl.load(starts + row), seen, window, splits, length, step)
    if split >= active:
        return

    query += row * query_row
    queries_here = query + own_head[:, None] * query_head + token[:, None] * query_token + parts[None]
    q = tl.load(queries_here, mask=exists[:, None] & (parts < size)[None], other=0.0)
    first = (begin + split * each) * step
    accumulated, maximum, denominator = _softmax(
        q, keys + slot * key_slot + head * key_head, values + slot * value_slot + head * value_head,
        visible + row * visible_row + token * visible_token, exists, first, tl.minimum(first + each * step, end),
        scale, key_column, value_column, size, size_out, padded, padded_out, tile, step,
    )  # fmt: skip

    heads = tl.num_programs(1) // tiles * folded
    to = out + ((row * length + token[:, None]) * heads + own_head[:, None]) * size_out + parts_out[None]
    stored = exists[:, None] & (parts_out < size_out)[None]
    if active == 1:
        tl.store(to, (accumulated / denominator[:, None]).to(q.dtype), mask=stored)
        return

    # Of each query: what was accumulated, then maximum and denominator.
    group = row * tl.num_programs(1) + tl.program_id(1)
    lines = tl.arange(0, tile) * (size_out + 2)
    own_part = sums + (group * splits + split) * tile * (size_out + 2)
    tl.store(own_part + lines[:, None] + parts_out[None], accumulated, mask=stored)
    tl.store(own_part + lines + size_out, maximum, mask=exists)
    tl.store(own_part + lines + size_out + 1, denominator, mask=exists)
    tl.debug_barrier()  # every thread's sums are stored before this block is counted
    if tl.atomic_add(counters + group, 1, sem="acq_rel") < active - 1:
        return
    tl.store(counters + group, 0)
    found = _combine(sums + group * splits * tile * (size_out + 2), active, exists, tile, size_out, padded_out)
    tl.store(to, found.to(q.dtype), mask=stored)


@triton.jit  # type: ignore[untyped-decorator]
def _divide(start, seen, window, splits, length: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns of a row: first step, end, steps per split, and splits that have some. Padding reads one step."""
    padding = start + length > seen
    end = tl.where(padding, tl.minimum(step, seen), start + length)
    begin = tl.where(padding | (window == 0) | (start < window), 0, (start - window) // step)
    each = tl.cdiv(tl.cdiv(end, step) - begin, splits)
    return begin, end, each, tl.cdiv(tl.cdiv(end, step) - begin, each)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(  # type: ignore[no-untyped-def]
    q, keys, values, visible, exists, first, end, scale, key_column, value_column,
    size: tl.constexpr, size_out: tl.constexpr, padded: tl.constexpr, padded_out: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """Online softmax over the columns from `first` to `end`: accumulated values [tile, padded_out], not yet divided by
    the denominator; maximum of the scores [tile]; denominator [tile]. `visible` points to each query's row of the mask.
    """
    parts, parts_out = tl.arange(0, padded), tl.arange(0, padded_out)
    # Finite, so that a query that sees nothing here has weights of 0; not 0, so that padding that sees nothing gets 0.
    maximum = tl.full([tile], -1e30, tl.float32)
    denominator = tl.full([tile], 1e-30, tl.float32)
    accumulated = tl.zeros([tile, padded_out], tl.float32)
    for place in range(first, end, step):
        columns = place + tl.arange(0, step)
        inside = columns < end
        keys_here = keys + columns[:, None] * key_column + parts[None]
        k = tl.load(keys_here, mask=inside[:, None] & (parts < size)[None], other=0.0)
        values_here = values + columns[:, None] * value_column + parts_out[None]
        v = tl.load(values_here, mask=inside[:, None] & (parts_out < size_out)[None], other=0.0)
        allowed = tl.load(visible[:, None] + columns[None], mask=exists[:, None] & inside[None], other=0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(allowed != 0, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - new_maximum[:, None])
        decay = tl.exp2(maximum - new_maximum)
        denominator = denominator * decay + tl.sum(weights, 1)
        accumulated = accumulated * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        maximum = new_maximum
    return accumulated, maximum, denominator


@triton.jit  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    parts, active, exists, tile: tl.constexpr, size_out: tl.constexpr, padded_out: tl.constexpr
):
    """The results of `active` splits as one: values [tile, padded_out]."""
    lines, columns = tl.arange(0, tile) * (size_out + 2), tl.arange(0, padded_out)
    stored = exists[:, None] & (columns < size_out)[None]
    maximum = tl.full([tile], -1e30, tl.float32)
    denominator = tl.zeros([tile], tl.float32)
    accumulated = tl.zeros([tile, padded_out], tl.float32)
    for _ in range(active):
        # .cg: not from the first-level cache, which does not see what other processors store.
        part_maximum = tl.load(parts + lines + size_out, mask=exists, other=-1e30, cache_modifier=".cg")
        part_denominator = tl.load(parts + lines + size_out + 1, mask=exists, other=0.0, cache_modifier=".cg")
        part = tl.load(parts + lines[:, None] + columns[None], mask=stored, other=0.0, cache_modifier=".cg")
        new_maximum = tl.maximum(maximum, part_maximum)
        decay, scaled = tl.exp2(maximum - new_maximum), tl.exp2(part_maximum - new_maximum)
        denominator = denominator * decay + part_denominator * scaled
        accumulated = accumulated * decay[:, None] + part * scaled[:, None]
        maximum = new_maximum
        parts += tile * (size_out + 2)
    return accumulated / denominator[:, None]
