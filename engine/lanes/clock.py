"""Clocks of lanes that share one device, and the order of their turns.

A lane's clock runs while the lane works (admission, prefill, rounds) and stands still while another does, so lanes do
not slow each other down in the figures. All events of a lane are timed by its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

CLOCKS = (
    "A lane's clock runs while the lane works and stops while the other does. Interleaved, the lane with the earlier "
    "clock runs the next round; sequential, the right lane begins when the left one has ended. Each lane has its own "
    "cache, drafters and cost table, reads the whole prompt itself, and no round contains rows of both."
)
"""Explanation of the clocks for users."""


class Order(StrEnum):
    """Order in which lanes take turns on the device."""

    INTERLEAVED = "interleaved"
    """The lane with the earlier clock has the next turn, so both clocks advance together."""
    SEQUENTIAL = "sequential"
    """The second lane begins when the first has ended."""


class LaneClock:
    """Clock that counts seconds inside `running` only.

    Args:
        now: monotonic time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._worked = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        """Seconds counted so far."""
        return self._worked + (self._now() - self._since if self._since is not None else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager during which the clock runs."""
        self._since = self._now()
        try:
            yield
        finally:
            self._worked, self._since = self(), None


def next_lane(order: Order, busy: Sequence[int], seconds: Sequence[float]) -> int:
    """Index of the lane that has the next turn.

    With turns of one round each, the clocks of two lanes that began together never differ by more than one round
    while both are busy.

    Args:
        order: how the lanes share the device.
        busy: indices of lanes that have work, ascending; not empty.
        seconds: per lane, time worked since it was last idle.
    """
    if order is Order.SEQUENTIAL:
        return busy[0]
    return min(busy, key=seconds.__getitem__)
