"""Weights of an unquantised model as 8-bit or 4-bit codes in groups of 32."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from specchat.engine.kernels.library import library
from specchat.engine.kernels.packed_matrix import Format, pack
from specchat.engine.kernels.quantized_layers import QuantizedLinear
from specchat.engine.models.matrix_arrays import GROUP, MatrixArrays

METHODS = ("q8", "q4")
PLAIN = {torch.bfloat16: Format.BF16, torch.float16: Format.F16, torch.float32: Format.F32}
"""Types of weights that can be quantised."""


def quantize(weights: Tensor, method: str) -> MatrixArrays:
    """W [N, K], of one of the types of `PLAIN` and finite, K a multiple of 32, rounded to the nearest codes.

    q8 is symmetric, its scale the largest absolute weight / 127; q4 has the group's minimum, and as its scale
    (maximum - minimum) / 15. Codes are chosen for the scale as float16 has it.
    """
    weights = weights.detach().contiguous()
    rows, columns = weights.shape
    codes = np.empty((rows, columns), np.int8 if method == "q8" else np.uint8)
    scale = np.empty((rows, columns // GROUP), np.float16)
    minimum = None if method == "q8" else np.empty_like(scale)
    library().quantize(
        int(PLAIN[weights.dtype]),
        weights.data_ptr(),
        scale.size,
        codes.ctypes.data,
        scale.ctypes.data,
        None if minimum is None else minimum.ctypes.data,
    )
    return MatrixArrays(Format.Q8 if minimum is None else Format.Q4, codes, scale, minimum)


def can_quantize(weight: Tensor) -> bool:
    """Whether groups divide the rows of a weight [out, in]."""
    return weight.shape[1] % GROUP == 0


def quantized_linear(weight: Tensor, bias: Tensor | None = None, method: str = "q8") -> QuantizedLinear:
    """A layer y = x Wᵀ + b with W [out, in] as codes, made by a method of `quantize`."""
    arrays = quantize(weight, method)
    return QuantizedLinear(pack(arrays.format, arrays.codes, arrays.scale, arrays.minimum), bias)


def quantize_network(network: nn.Module, method: str = "q8") -> None:
    """Replace every linear layer of a network whose weight groups divide."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and can_quantize(child.weight):
                setattr(module, name, quantized_linear(child.weight, child.bias, method))
