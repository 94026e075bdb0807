"""Linear layers that read the same input, computed by one product: fewer and larger kernels on a GPU."""

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
