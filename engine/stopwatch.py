"""Marks in time on the device that does the work."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Times the stretches between marks without waiting for the device.

    On CUDA the marks are events in the stream, read after a synchronisation that happens anyway; elsewhere they are
    the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[float | torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """End a stretch and begin the next."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()  # type: ignore[no-untyped-call]
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """The stretches so far; the device must have passed the last mark."""
        return [_between(a, b) for a, b in zip(self._marks, self._marks[1:], strict=False)]


def _between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    return start.elapsed_time(end) / 1000  # type: ignore[union-attr, no-any-return]
