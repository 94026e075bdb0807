"""Linear layers of a small network on the quantised kernels: codes made of the weights that it has."""

from __future__ import annotations

from torch import Tensor, nn

from specchat.engine.kernels.packed_matrix import pack
from specchat.engine.kernels.quantized_linear import QuantizedLinear
from specchat.engine.models.matrix_arrays import GROUP
from specchat.engine.models.packed.quantize import quantize


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
