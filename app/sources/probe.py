"""Measures the CPU time of the interface and the load of the GPU."""

import time
from typing import Any

from specchat.engine import size_text


class Probe:
    """Samples of the interface's CPU time and, through NVML, of a GPU."""

    def __init__(self) -> None:
        self._processor: float | None = None
        self._wall = 0.0
        self._gpu: Any = None

    def interface(self) -> float | None:
        """CPU time / elapsed time of the calling thread, the interface's, since the last call; None at the first."""
        before, wall = self._processor, self._wall
        self._processor, self._wall = time.thread_time(), time.monotonic()
        if before is None or self._wall <= wall:
            return None
        return (self._processor - before) / (self._wall - wall)

    def find_gpu(self, uuid: str) -> None:
        """Select the GPU of this UUID; none without NVML or without such a GPU."""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except Exception:  # no library, driver or permission
            self._gpu = None

    def gpu(self) -> str:
        """Utilisation and memory as text; empty without a GPU."""
        if self._gpu is None:
            return ""
        import pynvml

        try:
            busy = pynvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._gpu)
        except pynvml.NVMLError:
            return ""
        return f"{busy} % · {size_text(memory.used)} of {size_text(memory.total)}"
