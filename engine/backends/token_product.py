"""Linear layers whose product with one token is a Triton kernel on a GPU.

A pass over one token takes as long as reading the weights. On an H200, in µs, for the products of a layer of 8B (query,
key and value; output of attention; gate and up; down) and its output layer: the kernel 14.5, 10.5, 55.2, 29.2, 231;
cuBLAS 17.3, 13.8, 57.0, 32.2, 247; torch's compiler, norm and activation included, 13.9, 12.8, 56.0, 33.8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.device import gpu
from specchat.engine.errors import first_line

_GAP = 0.02
"""Largest relative error in the check."""


class TokenLinear(nn.Linear):
    """`nn.Linear` without gradients; the product with a single token is the kernel's."""

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in]."""
        if x.numel() == self.in_features:
            product: Tensor = multiply(x, self.weight, self.bias)
            return product
        return super().forward(x)


@torch.library.custom_op("specchat::multiply", mutates_args=())
def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None = None, gated: bool = False
) -> Tensor:
    """x Wᵀ + b [..., out] of one token x [..., in]; in torch on a CPU.

    Args:
        addend: added to the result, which has its shape.
        gated: the first half of the outputs are gates: the result is the other half times their SiLU.
    """
    product = functional.linear(x, weight, bias)
    if gated:
        gate, up = product.chunk(2, -1)
        product = functional.silu(gate) * up
    return product if addend is None else product + addend


@multiply.register_fake
def _(x: Tensor, weight: Tensor, bias: Any, addend: Any = None, gated: bool = False) -> Tensor:  # noqa: ARG001
    return x.new_empty(*x.shape[:-1], weight.shape[0] // (2 if gated else 1))


@multiply.register_kernel("cuda")
def _(x: Tensor, weight: Tensor, bias: Any, addend: Any = None, gated: bool = False) -> Tensor:
    from specchat.engine.backends.token_product_kernel import launch

    return launch(x, weight, bias, addend, gated=gated)


def use_token_kernel(network: nn.Module) -> str | None:
    """Make the linear layers of a network on a GPU use the kernel; returns why they cannot, or None."""
    layers = [module for module in network.modules() if type(module) is nn.Linear]
    layers = [layer for layer in layers if gpu.has_triton(layer.weight.device)]
    for device, dtype in {(layer.weight.device, layer.weight.dtype) for layer in layers}:
        if (reason := kernel_fault(device, dtype)) is not None:
            return reason
    for layer in layers:
        layer.__class__ = TokenLinear  # the layer remains what others refer to
    return None


@lru_cache
def kernel_fault(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot be used on a device; not every GPU and build of Triton supports it."""
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(count, 600, generator=draw).to(dtype) for count in (1, 40))
    product = x.float() @ weight.float().T
    gate, up = product.chunk(2, -1)
    x, weight, addend = (each.to(device) for each in (x, weight, torch.ones(1, 40, dtype=dtype)))
    for expected, rest in (product, ()), (product + 1, (addend,)), (functional.silu(gate) * up, (None, True)):
        try:
            found = multiply(x, weight, None, *rest).cpu().float()
        except Exception as error:  # a compiler fails in many ways
            return first_line(error)
        if not (found - expected).norm() < _GAP * expected.norm():
            return "its results are wrong"
    return None
