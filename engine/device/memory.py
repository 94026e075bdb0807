"""Memory of a device: what is free on it, what this process holds, and returning freed heap pages to the system."""

from __future__ import annotations

from contextlib import suppress

import torch

try:
    import psutil
except ImportError:  # the engine also runs where only torch, transformers and safetensors are installed
    psutil = None


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on the device now; None on a CPU without psutil."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available) if psutil else None


def held_memory(device: torch.device) -> int | None:
    """Bytes this process holds: peak of allocated tensors on a GPU, resident memory on a CPU; None if not known.

    On a CPU, counts the process's own pages and mapped safetensors files. Pages of libraries are left out: how many
    of them have been touched says nothing of what a model takes.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if psutil is None or not psutil.LINUX:  # elsewhere psutil lists mapped files only, or nothing
        return None
    maps = psutil.Process().memory_maps()
    ours = (".safetensors", ".packed")
    return sum(int(each.rss) for each in maps if each.path.startswith("[") or each.path.endswith(ours))


def trim_heap() -> None:
    """Return freed heap pages to the system, which glibc keeps after loading (for a tokenizer a tenth of a small
    model's weights)."""
    if psutil:
        with suppress(AttributeError):  # a C library without malloc_trim
            psutil.heap_trim()
