"""Linear layers for inference: joined ones that read the same input, and prepacked ones.

Joined layers are one product: fewer and larger kernels on a GPU. oneDNN reorders a plain weight into blocks in every
call, which for a few tokens takes a third to a half of the time on a CPU. Packing once, at loading, gives the same
numbers without that cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Fused matrices of some families, and the matrices that their rows consist of, in order."""


def join_layers(network: nn.Module) -> None:
    """Join query, key and value, and gate and up projections of a network of transformers that has them apart."""
    for module in list(network.modules()):
        for names in FUSED.values():
            parts = [getattr(module, name, None) for name in names]
            if (layer := _joined(parts)) is not None:
                product = _Product(layer, [part.out_features for part in parts if part is not None])
                for i, name in enumerate(names):
                    setattr(module, name, JoinedLinear(product, i))


class _Product(nn.Module):
    """The product of joined layers, computed when the first of them is called, whichever that is.

    Results are kept until all have been called: they are used for the very tensor that they were computed from;
    for another one they are computed again.
    """

    def __init__(self, layer: nn.Module, sizes: list[int]) -> None:
        super().__init__()
        self.layer, self.sizes = layer, sizes
        self._last: tuple[Tensor | None, Sequence[Tensor], int] = (None, (), 0)  # input, results, layers not yet called

    def forward(self, x: Tensor, index: int) -> Tensor:
        """Outputs of one of the layers."""
        read, results, left = self._last
        if read is not x:
            results, left = self.layer(x).split(self.sizes, dim=-1), len(self.sizes)
        self._last = (None, (), 0) if left == 1 else (x, results, left - 1)
        return results[index]


class JoinedLinear(nn.Module):
    """One of several linear layers with a common product.

    Args:
        product: of all.
        index: which of them.
    """

    def __init__(self, product: _Product, index: int) -> None:
        super().__init__()
        self.product, self.index = product, index
        self.out_features = product.sizes[index]

    @property
    def weight(self) -> Tensor:
        """[out, in], a view."""
        return self._own(self.product.layer.weight)

    @property
    def bias(self) -> Tensor | None:
        """[out], a view, or None."""
        bias: Any = self.product.layer.bias
        return None if bias is None else self._own(bias)

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b [..., out] of x [..., in]."""
        y: Tensor = self.product(x, self.index)
        return y

    def _own(self, rows: Any) -> Tensor:
        part: Tensor = rows.split(self.product.sizes)[self.index]
        return part


def _joined(parts: Sequence[Any]) -> nn.Module | None:
    """A layer with the outputs of all; None if they are not alike."""
    first, kind = parts[0], type(parts[0])
    joined = getattr(kind, "joined", None)  # of quantised layers
    if not (kind is nn.Linear or joined) or any(type(part) is not kind for part in parts):
        return None
    if len({(part.in_features, part.bias is None) for part in parts}) > 1:
        return None
    if joined:
        made: nn.Module | None = joined(parts)
        return made
    layer = nn.Linear(first.in_features, sum(part.out_features for part in parts), first.bias is not None, "meta")
    for name, _ in list(layer.named_parameters()):
        values = torch.cat([getattr(part, name) for part in parts])
        setattr(layer, name, nn.Parameter(values, requires_grad=False))
    return layer


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
