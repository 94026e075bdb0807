"""How a head's weights are stored in memory: as its target's do, since the draft is the bottleneck of a fast target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.quantized_layers import QuantizedLinear
from specchat.engine.models.packed.quantize import can_quantize, quantize_network, quantized_linear
from specchat.engine.models.prepacked_linear import pack, prepacked_linear


def pack_head(head: nn.Module, device: torch.device, dtype: torch.dtype, codes: str | None) -> int:
    """Put the head on its target's device in its dtype, the linear layers in the layout that is fastest.

    Args:
        codes: `q8` or `q4`, which linear layers get, made of the weights as they are stored; None for none.

    Returns:
        Bytes of all weights.
    """
    if codes is not None:
        quantize_network(head, codes)
    head.to(device, dtype).eval().requires_grad_(requires_grad=False)
    size = sum(weight.nbytes for weight in head.parameters())
    size += sum(layer.bytes for layer in head.modules() if isinstance(layer, QuantizedLinear))
    pack(head)
    return size


def score_layer(weight: Tensor | PackedMatrix, codes: str | None) -> tuple[nn.Module, int]:
    """The layer that scores a head's vocabulary, from the target's output rows [V', d], and its bytes.

    Args:
        weight: of the target; codes stay as they are.
        codes: `q8` or `q4`, which a plain weight gets; None for none.
    """
    if isinstance(weight, PackedMatrix):
        return QuantizedLinear(weight), weight.data.nbytes
    if codes is not None and can_quantize(weight):
        layer = quantized_linear(weight, method=codes)
        return layer, layer.bytes
    return prepacked_linear(weight), weight.nbytes
