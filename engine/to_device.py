"""Numbers on their way from the host to the device, without the host waiting for what the device has still to do."""

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
    """A tensor on the device; the dtype is that of the numbers where none is given.

    `torch.tensor(..., device=...)` would wait for the whole stream. An asynchronous copy from memory that is not
    pinned is staged before the call returns, so the numbers may go at once (CUDA runtime API, "API synchronization
    behavior").
    """
    return torch.as_tensor(numbers, dtype=dtype).to(device, non_blocking=True)
