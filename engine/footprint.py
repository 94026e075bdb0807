"""What this process holds of a device's memory, and what it holds for nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


def held_memory(device: torch.device) -> int | None:
    """Bytes: of a GPU the most that tensors have taken at once, of a CPU what is resident now; None if not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def give_back() -> None:
    """Hand back what loading has freed: glibc keeps it, for a tokenizer a tenth of a small model's weights."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
