"""Order in which lanes that share one device take turns, by their clocks.

A lane's clock runs while the lane works (admission, prefill, rounds) and stands still while another does, so lanes do
not slow each other down in the figures. All events of a lane are timed by its clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

CLOCKS = (
    "A lane's clock runs while the lane works and stops while the other does. Interleaved, the lane with the earlier "
    "clock runs the next round, or up to four short ones; sequential, the right lane begins when the left one has "
    "ended. Each lane has its own cache, drafters and cost table, reads the whole prompt itself, and no round contains "
    "rows of both."
)
"""Explanation of the clocks for users."""


class Order(StrEnum):
    """Order in which lanes take turns on the device."""

    INTERLEAVED = "interleaved"
    """The lane with the earlier clock has the next turn, so both clocks advance together."""
    SEQUENTIAL = "sequential"
    """The second lane begins when the first has ended."""


def next_lane(order: Order, busy: Sequence[int], seconds: Sequence[float]) -> int:
    """Index of the lane that has the next turn.

    The clocks of two lanes that began together never differ by more than one turn while both are busy.

    Args:
        order: how the lanes share the device.
        busy: indices of lanes that have work, ascending; not empty.
        seconds: per lane, time worked since it was last idle.
    """
    if order is Order.SEQUENTIAL:
        return busy[0]
    return min(busy, key=seconds.__getitem__)
