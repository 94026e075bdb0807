"""Rounding of linear layers to 4-bit codes while a head is trained: it has them beside a quantised target.

Straight-through estimation (Bengio et al. 2013, arXiv 1308.3432, section 2.3): the loss is that of the rounded weights,
its gradient is applied to the full ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from specchat.engine.models.matrix_arrays import GROUP
from specchat.engine.models.packed.quantize import can_quantize

_LARGEST = 15
"""Code of 4 bits."""


@contextmanager
def rounded(network: nn.Module) -> Iterator[None]:
    """Within it the linear layers of a network have the weights that 4-bit codes of their own stand for."""
    layers = [each for each in network.modules() if type(each) is nn.Linear and can_quantize(each.weight)]
    full = [layer.weight.data for layer in layers]
    try:
        for layer in layers:
            layer.weight.data = round_to_four_bits(layer.weight.data)
        yield
    finally:
        for layer, weight in zip(layers, full, strict=True):
            layer.weight.data = weight


def round_to_four_bits(weight: Tensor) -> Tensor:
    """The weights [N, K] that the codes of `quantize(weight, "q4")` stand for, on any device."""
    groups = weight.detach().float().view(len(weight), -1, GROUP)
    least = groups.amin(-1, keepdim=True).half().float()
    above = groups - least
    scale = (above.amax(-1, keepdim=True) / _LARGEST).half().float()
    codes = (above * scale.reciprocal().nan_to_num(posinf=0.0)).clamp(0, _LARGEST).round()
    return (least + codes * scale).flatten(1).to(weight.dtype)
