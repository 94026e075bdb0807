"""Stopwatch for work on a device."""

from __future__ import annotations

import time
from itertools import pairwise

import torch


class Stopwatch:
    """Measures the time between marks without synchronising at each mark.

    On CUDA a mark is an event in the stream, read after a synchronisation that is needed anyway; elsewhere it is the
    host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """End an interval and begin the next."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Intervals so far, in seconds; waits until the device has passed the last mark."""
        if self._cuda:
            self._events[-1].synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events)]
        return [b - a for a, b in pairwise(self._times)]
