"""Two lanes on one device: whose turn it is, and how long each has worked. No model in sight.

A lane's clock runs while the lane works (admission, prefill, rounds) and stands while another one does, so lanes that
share a device do not slow each other in the figures. Every event of a lane is timed by that clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

CLOCKS = (
    "A lane's clock runs while the lane works and stands while the other does. Interleaved, the lane whose clock is "
    "behind has the next round; sequential, the right lane begins when the left one has ended. Each lane has a cache, "
    "drafters and a cost table of its own, reads the whole prompt itself, and no round ever holds both."
)
"""How the clocks count, for people."""


class Order(StrEnum):
    """How lanes share the device."""

    INTERLEAVED = "interleaved"
    """The lane whose clock is behind has the next turn: both run in step, the faster one gets ahead in tokens."""
    SEQUENTIAL = "sequential"
    """The second lane begins when the first has ended."""


class LaneClock:
    """Seconds of work. It runs inside `running` only; reading it costs nothing.

    Args:
        now: any steadily growing time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._worked = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        """Seconds worked so far, the present stretch included."""
        return self._worked + (self._now() - self._since if self._since is not None else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A stretch of work."""
        self._since = self._now()
        try:
            yield
        finally:
            self._worked, self._since = self(), None


def next_lane(order: Order, busy: Sequence[int], seconds: Sequence[float]) -> int:
    """The lane that has the next turn.

    With turns of one round each, the clocks of two lanes that began together never differ by more than one round
    while both are busy.

    Args:
        order: how they share the device.
        busy: lanes that have work, in order; not empty.
        seconds: of every lane, how long it has worked on what it is working on.
    """
    if order is Order.SEQUENTIAL:
        return busy[0]
    return min(busy, key=seconds.__getitem__)
