"""Captures of CUDA graphs: graphs of one chat before requests are served, one more whenever there is time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specchat.engine.errors import first_line
from specchat.engine.events import Captured
from specchat.engine.worker.assembly import Assembly


class Captures:
    """The captures of an engine, with their memory and time.

    Args:
        made: what the engine runs with.
    """

    def __init__(self, made: Assembly) -> None:
        self._made = made
        self._bytes, self._seconds = 0, 0.0

    def made(self, at: float) -> Captured:
        """The graphs captured so far."""
        captured, left = self._made.graphs
        return Captured(captured, self._bytes, self._seconds, left, at)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Context manager that counts time and memory of its work as spent on captures."""
        began, before = time.monotonic(), self._reserved()
        yield
        self._seconds += time.monotonic() - began
        self._bytes += self._reserved() - before

    def is_next(self, below: float) -> bool:
        """Whether a capture of a rank below this is planned."""
        return any(pool.next_rank < below for pool in self._made.graph_pools)

    def next(self) -> bool:
        """Do the planned capture of the lowest rank; if there is not enough memory for it, drop this and all others.

        Returns:
            Whether there was enough memory.
        """
        try:
            with self.measured():
                self._made.capture_next()
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            for pool in self._made.graph_pools:
                pool.give_up(first_line(error))
            return False
        return True

    def _reserved(self) -> int:
        """Bytes that torch has taken from the GPU."""
        device = self._made.target.device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
