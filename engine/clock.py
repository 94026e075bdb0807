"""Clock of events that can be stopped, so that pauses and the work of others do not count as time of a reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Clock that counts seconds while it runs. It is run and stopped by one thread and may be read by any.

    Args:
        runs: whether it runs from the start.
        now: monotonic time in seconds.
    """

    def __init__(self, *, runs: bool = True, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._state: tuple[float, float | None] = 0.0, now() if runs else None
        """Seconds up to the last change, and the time of that change if it runs; replaced as a whole for readers."""

    def __call__(self) -> float:
        """Seconds counted so far."""
        counted, since = self._state
        return counted if since is None else counted + self._now() - since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager during which the clock runs, and after which it is stopped."""
        self._state = self(), self._now()
        try:
            yield
        finally:
            self._state = self(), None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Context manager during which the clock is stopped, and after which it runs."""
        self._state = self(), None
        try:
            yield
        finally:
            self._state = self(), self._now()
