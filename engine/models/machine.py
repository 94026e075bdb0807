"""This machine: free memory and disk, memory bandwidth, and whether it has a GPU."""

from __future__ import annotations

import functools
import os
import shutil
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specchat.engine.kernels.build import LIBRARY
from specchat.engine.progress import size_text

_COPIED, _COPIES = 64 << 20, 4


class Shortage(NamedTuple):
    """Memory or disk that a model needs and this machine does not have free."""

    what: str
    needed: int
    free: int

    def __str__(self) -> str:
        needed, free, difference = map(size_text, (self.needed, self.free, self.needed - self.free))
        return f"needs {needed} of {self.what} and {free} are free, {difference} too little"


@dataclass(frozen=True, slots=True)
class Machine:
    """Free resources of this machine."""

    memory: int
    """Free bytes, of the GPU on a machine with one."""
    disk: int
    """Free bytes where models are stored."""
    bandwidth: float
    """Bytes per second that a large copy reads and writes; 0 if there is no memory to measure it."""
    kernels: bool = True
    """Whether the quantised kernels are built."""
    gpu: bool = False
    """Whether models run on a GPU."""

    def shortage(self, memory: int, disk: int) -> Shortage | None:
        """The shortage for this many bytes of memory and disk; None if both are free."""
        if memory > self.memory:
            return Shortage("memory", memory, self.memory)
        return Shortage("disk", disk, self.disk) if disk > self.disk else None

    @classmethod
    def now(cls, models: Path) -> Machine:
        """Measure it; the bandwidth is measured once per process.

        Args:
            models: folder of the model store, which need not exist.
        """
        existing = next(folder for folder in (models, *models.absolute().parents) if folder.is_dir())
        return cls(_free_memory(), shutil.disk_usage(existing).free, _bandwidth(), LIBRARY.exists(), has_gpu())


@functools.cache
def has_gpu() -> bool:
    """Whether torch finds a CUDA GPU. Without its driver torch is not imported."""
    if shutil.which("nvidia-smi") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _free_memory() -> int:
    if has_gpu():
        import torch

        with suppress(RuntimeError):  # a full GPU has no memory for a context of CUDA
            return int(torch.cuda.mem_get_info()[0])
        return 0
    import psutil  # the engine alone can do without

    return int(psutil.virtual_memory().available)


@functools.cache
def _bandwidth() -> float:
    """The best of several copies of 64 MB, by all threads of a CPU."""
    try:
        copy = _gpu_copy() if has_gpu() else _cpu_copy()
        times = timeit.repeat(copy, number=1, repeat=_COPIES + 1)  # the first one maps the pages
    except RuntimeError:  # the GPU is full
        return 0.0
    return 2 * _COPIED / min(times)


def _cpu_copy() -> Callable[[], object]:
    import numpy as np

    threads = os.cpu_count() or 1
    source, target = (np.ones((threads, _COPIED // threads), np.uint8) for _ in range(2))
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.copyto, target, source))


def _gpu_copy() -> Callable[[], object]:
    import torch

    source, target = (torch.ones(_COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return copy
