"""What tells one target from another, whatever precision it is loaded in."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import torch

_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_SAMPLES = 64
"""Weights looked at per tensor: enough to tell any two trainings apart, few enough to cost nothing at a start."""


def fingerprint(model: Any) -> str:
    """SHA-256, in hexadecimal, over names, shapes and evenly spread weights (as bfloat16) of a network.

    A network keeps the one it was given first, whatever its layers are replaced by.
    """
    if model not in _known:
        _known[model] = _fingerprint(model)
    return _known[model]


def _fingerprint(model: Any) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().flatten()
        step = max(len(flat) // _SAMPLES, 1)
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(flat[::step][:_SAMPLES].to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
