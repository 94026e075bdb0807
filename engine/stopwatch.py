"""Marks in time on the device that does the work."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Stopwatch:
    """Times the stretches between marks without waiting for the device.

    On CUDA the marks are events in the stream, read after a synchronisation that happens anyway; elsewhere they are
    the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """End a stretch and begin the next."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """The stretches so far, once the device has passed the last mark."""
        if self._cuda:
            self._events[-1].synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events)]
        return [b - a for a, b in pairwise(self._times)]
