"""Copy of numbers from the host to the device without waiting for the device's queued work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = (
    Sequence[int] | Sequence[float] | Sequence[Sequence[int]] | Sequence[Sequence[float]] | NDArray[np.float64] | Tensor
)


def to_device(numbers: Numbers, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Tensor of the numbers on the device; without `dtype` it has theirs.

    `torch.tensor(..., device=...)` would wait for the whole stream. An asynchronous copy from pageable memory is staged
    before the call returns, so the numbers may be freed at once (CUDA runtime API, "API synchronization behavior").
    """
    return torch.as_tensor(numbers, dtype=dtype).to(device, non_blocking=True)
