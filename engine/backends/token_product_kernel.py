"""The Triton kernel of `engine.backends.token_product.multiply`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specchat.engine.device.gpu import starts_early

_BLOCK = 8192
"""Weights that a thread block reads at once; on an H200 its shape for 8B and 1B was the fastest or within 6 % of it."""
_LONGEST, _SHORTEST = 2048, 256
"""Inputs of a step. A step that does not divide the input reads less at its end."""


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """`multiply` of x [..., K] with one token, W [N, K], b [N] and an addend, all of one dtype; sums in float32."""
    size_out, size_in = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    early = weight.is_contiguous() and starts_early(x.device)  # else its copy is the kernel before
    token, weight = x.reshape(-1).contiguous(), weight.contiguous()
    out = x.new_empty(*x.shape[:-1], size_out)
    step = max(min(size_in & -size_in, _LONGEST), _SHORTEST)
    lines = _BLOCK // step
    outputs = lines // 2 if gated else lines
    _multiply[(triton.cdiv(size_out, outputs),)](
        token, weight, weight if bias is None else bias, token if addend is None else addend.contiguous(), out,
        size_in, size_out, lines, outputs, step, bias is not None, addend is not None, early,
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    token, weight, bias, addend, out, size_in, size_out, lines: tl.constexpr, outputs: tl.constexpr,
    step: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Outputs [outputs] of one token, from as many or twice as many lines of the weight; grid [N / outputs].

    Results are rounded where the modelling code rounds.
    """
    part_of, column = tl.arange(0, lines), tl.arange(0, step)
    output = tl.program_id(0) * outputs + part_of % outputs
    line = part_of // outputs * size_out + output  # of gates, and of what they gate
    exists = output < size_out
    here = weight + line.to(tl.int64)[:, None] * size_in + column[None]
    inside = column < size_in
    part = tl.load(here, mask=exists[:, None] & inside[None], other=0.0, eviction_policy="evict_first")
    if early:  # the kernel before this one writes the token, not the weight
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    read = tl.load(token + column, mask=inside, other=0.0)
    sums = part.to(tl.float32) * read.to(tl.float32)[None]
    for at in range(step, size_in, step):
        inside = at + column < size_in
        part = tl.load(here + at, mask=exists[:, None] & inside[None], other=0.0, eviction_policy="evict_first")
        read = tl.load(token + at + column, mask=inside, other=0.0)
        sums += part.to(tl.float32) * read.to(tl.float32)[None]
    found = tl.sum(sums, 1)
    kind: tl.constexpr = out.dtype.element_ty
    if biased:
        found += tl.load(bias + line, mask=exists, other=0.0).to(tl.float32)
    if outputs < lines:
        gate, found = tl.split(tl.trans(tl.reshape(found.to(kind).to(tl.float32), (2, outputs))))
        found *= (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
        output = tl.program_id(0) * outputs + tl.arange(0, outputs)
        exists = output < size_out
    if added:
        found = found.to(kind).to(tl.float32) + tl.load(addend + output, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + output, found.to(kind), mask=exists)
