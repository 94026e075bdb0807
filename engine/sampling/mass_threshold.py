"""The threshold at which the largest of many numbers reach a given sum of weights, without sorting them.

Two histograms find it, over the high and then the low half of the bits of a float32 (a radix selection, as in Alabi et
al. 2012). Weights are integers, so a sum does not depend on the order of its terms, or on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = 16
_BINS = 1 << _HALF
_WEIGHT_BITS = 44
"""Of a weight of 1; the weights of 2¹⁸ numbers fit into 63 bits."""


def integer_weights(shares: Tensor) -> Tensor:
    """Weights, int64, of shares between 0 and 1, in units of 2⁻⁴⁴."""
    return (shares.double() * (1 << _WEIGHT_BITS)).long()


def mass_threshold(values: Tensor, weights: Tensor, enough: Tensor) -> Tensor:
    """The largest of each row's values such that those not below it weigh enough; [N, 1].

    Args:
        values: [N, V], float32.
        weights: [N, V], int64, not negative.
        enough: [N, 1], int64, from 1 to the weight of all.
    """
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    keys = _ordered(bits).long()
    high = (keys >> _HALF) + _BINS // 2
    first, left = _bin_of(high, weights, enough)
    inside = high == first
    # Numbers outside weigh nothing; apart from each other they do not wait for one counter.
    apart = torch.arange(keys.shape[-1], device=keys.device) % _BINS
    last, _ = _bin_of(torch.where(inside, keys & (_BINS - 1), apart), weights * inside, left)
    return _ordered(((first - _BINS // 2 << _HALF) | last).int()).view(torch.float32)


def _ordered(bits: Tensor) -> Tensor:
    """Integers in the order of the floats with these bits; of such integers, the bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _bin_of(bins: Tensor, weights: Tensor, enough: Tensor) -> tuple[Tensor, Tensor]:
    """The last bin [N, 1] with which those above it weigh enough, and how much of that they leave to it."""
    sums = torch.zeros(len(bins), _BINS, dtype=torch.long, device=bins.device)
    up_to = sums.scatter_add_(1, bins, weights.expand_as(bins)).cumsum(-1)
    above = up_to[:, -1:] - up_to
    found = (above >= enough).sum(-1, keepdim=True).clamp_(max=_BINS - 1)  # beyond them where weights are no numbers
    return found, enough - above.gather(-1, found)
