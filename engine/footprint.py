"""What this process holds of a device's memory, and what it holds for nothing."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

_MAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")


def held_memory(device: torch.device) -> int | None:
    """Bytes: of a GPU the most that tensors have taken at once, of a CPU what is resident now; None if not known.

    Resident are the process's own pages and those of mapped weights. The pages of libraries are not: how many of them
    have been touched says nothing of what a model takes.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    held, ours = 0, False
    for line in lines:
        if mapping := _MAPPING.fullmatch(line):
            ours = not mapping[1] or mapping[1].startswith("[") or mapping[1].endswith(".safetensors")
        elif ours and line.startswith("Rss:"):
            held += int(line.split()[1]) * 1024
    return held


def give_back() -> None:
    """Hand back what loading has freed: glibc keeps it, for a tokenizer a tenth of a small model's weights."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
