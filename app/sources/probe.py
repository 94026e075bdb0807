"""Measures the CPU time of the interface and the load of the GPU."""

from __future__ import annotations

import time
from typing import Any


class Probe:
    """Samples of the interface's CPU time and, through NVML, of a GPU."""

    def __init__(self) -> None:
        self._processor: float | None = None
        self._wall = 0.0
        self._gpu: Any = None

    def interface(self) -> float | None:
        """Processor time of the calling thread / time, since the call before; None at the first.

        To be called in the interface's thread.
        """
        before, wall = self._processor, self._wall
        self._processor, self._wall = time.thread_time(), time.monotonic()
        if before is None or self._wall <= wall:
            return None
        return (self._processor - before) / (self._wall - wall)

    def find_gpu(self, name: str) -> None:
        """Look for the GPU of this name; without NVML, or without one, nothing is found."""
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self._gpu = next((h for h in handles if _text(pynvml.nvmlDeviceGetName(h)) == name), None)
        except Exception:  # no library, no driver, no permission: the figures are then left out
            self._gpu = None

    def gpu(self) -> str:
        """Utilisation and memory in words; empty where there is none."""
        if self._gpu is None:
            return ""
        import pynvml

        try:
            busy = pynvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._gpu)
        except pynvml.NVMLError:
            return ""
        return f"{busy} % · {memory.used / 1e9:.1f} of {memory.total / 1e9:.0f} GB"


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
