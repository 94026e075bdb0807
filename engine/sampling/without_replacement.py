"""Draws of several different tokens from one distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.engine.sampling.sampler import draw


def draw_different(weights: Tensor, u: Tensor) -> Tensor:
    """From distributions [B, P, V] with uniforms [B, P, K], each token without those before it: [B, P, K], int64.

    Where a distribution has fewer than K tokens the last ones mean nothing: they have no weight, or come again.
    """
    shape, left = u.shape, weights.flatten(0, 1)
    drawn: list[Tensor] = []
    for draws in u.flatten(0, 1).unbind(1):
        if drawn:
            left = left.scatter(1, drawn[-1][:, None], 0.0)
        drawn.append(draw(left, draws))
    return torch.stack(drawn, 1).view(shape)
