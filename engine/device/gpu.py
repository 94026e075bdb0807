"""Features of a GPU that kernels in Triton may use."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch


def has_triton(device: torch.device) -> bool:
    """Whether Triton makes kernels for the device."""
    return device.type == "cuda" and find_spec("triton") is not None


@lru_cache
def processors(device: torch.device) -> int:
    """Number of its streaming multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel may start before the one before it has ended: programmatic dependent launch, from Hopper on."""
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device)[0] >= 9
