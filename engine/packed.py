"""Linear layers whose weights lie in memory as the processor's matrix kernels read them.

oneDNN copies a plain weight into blocks in every call, which for a few tokens takes a third to a half of the time.
Packed once, at loading, a layer gives the same numbers without it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TOKENS = 16
"""Rows that the layout is chosen for: about what a round verifies."""


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU.

    Args:
        linear: what it stands in for; its weight may be dropped afterwards.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TOKENS)

    @property
    def weight(self) -> Tensor:
        """A plain copy [out, in], made anew each time."""
        plain: Tensor = self._packed.to_dense()
        return plain

    @property
    def bytes(self) -> int:
        """Memory of the packed weight."""
        return self.in_features * self.out_features * self._packed.dtype.itemsize

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y


def can_pack(weight: Tensor) -> bool:
    """Whether there are such kernels for this weight."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def pack(network: nn.Module) -> int:
    """Replace every linear layer of a network that can be packed.

    Returns:
        Bytes that the weights take more than before: a plain weight that something else uses too is kept as well.
    """
    before = _bytes(network)
    layers = [
        (module, name, child)
        for module in network.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and can_pack(child.weight)
    ]
    if not layers:
        return 0
    while layers:  # each plain weight goes as soon as it is packed
        module, name, child = layers.pop()
        setattr(module, name, PackedLinear(child))
    del child
    for parameter in network.parameters():
        # The others may lie in a file mapped into memory, which would stay there as a whole for their sake.
        parameter.data = parameter.data.clone()
    return _bytes(network) - before


def packed_linear(weight: Tensor) -> nn.Module:
    """A layer without bias from its weight [out, in], packed where that can be."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(linear) if can_pack(weight) else linear


def _bytes(network: nn.Module) -> int:
    plain = sum(parameter.nbytes for parameter in network.parameters())
    return plain + sum(module.bytes for module in network.modules() if isinstance(module, PackedLinear))
