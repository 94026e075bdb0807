"""Fingerprint of a network's weights, independent of the precision they are loaded in."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_SAMPLES = 64
"""Weights sampled per tensor: enough to tell any two trainings apart at negligible cost."""


def fingerprint(model: Any) -> str:
    """SHA-256, in hexadecimal, over names, shapes and evenly spaced weights (as bfloat16) of a network.

    It is computed once per network object, so replacing layers later does not change it.
    """
    if model not in _known:
        state = model.state_dict()
        _known[model] = fingerprint_of(
            (name, tuple(weight.shape), weight.detach().flatten()[sampled(weight.numel())])
            for name, weight in state.items()
        )
    return _known[model]


def fingerprint_of(tensors: Iterable[tuple[str, tuple[int, ...], Tensor]]) -> str:
    """The same from name, shape and sampled weights (`sampled`) of every tensor of a network's state."""
    digest = hashlib.sha256()
    for name, shape, weights in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(f"{name} {shape}".encode())
        digest.update(weights.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def sampled(size: int) -> slice:
    """Which of a tensor's weights, flat, are looked at."""
    step = max(size // _SAMPLES, 1)
    return slice(0, min(step * _SAMPLES, size), step)
