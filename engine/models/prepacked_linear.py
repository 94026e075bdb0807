"""Prepacked linear layers: weights in oneDNN's blocked layout, for inference on the CPU.

oneDNN reorders a plain weight into blocks in every call, which for a few tokens takes a third to a half of the time.
Packing once, at loading, gives the same numbers without that cost.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TOKENS = 16
"""Rows (tokens) that the layout is chosen for: about what a round verifies."""


class PrepackedLinear(nn.Module):
    """Drop-in for `nn.Linear` with a prepacked weight.

    Args:
        linear: the layer to replace; its weight may be dropped afterwards.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TOKENS)

    @property
    def weight(self) -> Tensor:
        """The weight in plain layout [out, in]; copied at each access."""
        return self._packed.to_dense()

    @property
    def bytes(self) -> int:
        """Memory of the packed weight."""
        return self.in_features * self.out_features * self._packed.dtype.itemsize

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y


def can_prepack(weight: Tensor) -> bool:
    """Whether oneDNN has prepacked kernels for the weight's device and dtype."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def pack(network: nn.Module) -> None:
    """Replace all linear layers of a network that can be prepacked.

    A weight that something else uses too (tied embeddings) is kept in both layouts.
    """
    layers = [
        (module, name, child)
        for module in network.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and can_prepack(child.weight)
    ]
    if not layers:
        return
    while layers:  # each plain weight is freed as soon as it is packed
        module, name, child = layers.pop()
        setattr(module, name, PrepackedLinear(child))
    del child
    for parameter in network.parameters():
        # The others may be views of a memory-mapped file, which would stay resident as a whole.
        parameter.data = parameter.data.clone()


def prepacked_linear(weight: Tensor) -> nn.Module:
    """A linear layer without bias from its weight [out, in], prepacked if possible."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return PrepackedLinear(linear) if can_prepack(weight) else linear
