"""Layout of the timeline: the columns of each round, the same time at the same column in every lane.

Rounds of one batch share a slot. Between two slots lies one empty cell, or two where time passed: pauses and the
reading of prompts are cut to that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from specchat.app.chat.reply import Reply
from specchat.engine import Round

SCALES_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Milliseconds of a cell."""
USUAL = 6
"""Cells of a usual round, unless the user has zoomed."""
LEAST = 3
"""Cells of the shortest round."""
SAMPLE = 9
"""Rounds that say what is usual."""


@dataclass(slots=True)
class TimelineSlot:
    """One round of the batch: seconds, and the columns it fills."""

    start: float
    end: float
    left: int
    right: int


class TimelineLayout:
    """The lanes of some replies, growing with them."""

    def __init__(self, replies: Sequence[Reply], scale: int | None = None) -> None:
        self.replies = list(replies)
        self.slots: list[TimelineSlot] = []
        self._lefts: list[int] = []
        self.scale = scale
        """Index into `SCALES_MS`; None until there are rounds to choose it by."""
        self._places: list[list[int]] = [[] for _ in replies]
        self.update()

    @property
    def width(self) -> int:
        """Columns in all, with an empty one at each end."""
        return self.slots[-1].right + 1 if self.slots else 0

    @property
    def ms(self) -> float:
        """Milliseconds of a cell."""
        return SCALES_MS[self.scale] if self.scale is not None else 0.0

    def update(self) -> bool:
        """Take in the new rounds; whether there were any."""
        new = [
            (record.at - record.seconds, lane, record)
            for lane, (reply, places) in enumerate(zip(self.replies, self._places, strict=True))
            for record in reply.rounds[len(places) :]
        ]
        if not new:
            return False
        if self.scale is None:
            usual = median(record.seconds for _, _, record in new[:SAMPLE]) * 1000
            self.scale = min(range(len(SCALES_MS)), key=lambda i: abs(usual / SCALES_MS[i] - USUAL))
        for start, lane, record in sorted(new, key=lambda item: item[0]):
            self._places[lane].append(self._slot(start, record))
        return True

    def slot(self, lane: int, index: int) -> TimelineSlot:
        """The slot of a round, by its index in the reply."""
        return self.slots[self._places[lane][index]]

    def count(self, lane: int) -> int:
        """Rounds that have a slot."""
        return len(self._places[lane])

    def visible(self, lane: int, left: int, right: int) -> range:
        """Indices of the lane's rounds between two columns."""
        first = max(bisect_right(self._lefts, left) - 1, 0)
        last = bisect_right(self._lefts, right)
        places = self._places[lane]
        return range(_first_at_least(places, first), _first_at_least(places, last))

    def round_at(self, lane: int, column: int) -> int | None:
        """Index of the lane's round at this column, or the nearest one to it."""
        places = self._places[lane]
        if not places:
            return None
        slot = max(bisect_right(self._lefts, column) - 1, 0)
        return min(_first_at_least(places, slot), len(places) - 1)

    def _slot(self, start: float, record: Round) -> int:
        last = self.slots[-1] if self.slots else None
        if last is not None and start < last.end:
            last.end = max(last.end, record.at)
            return len(self.slots) - 1
        cell_s = self.ms / 1000
        gap = 1 if last is None else 1 + (start - last.end > cell_s)
        left = (last.right if last else 0) + gap
        width = max(LEAST, round(record.seconds / cell_s))
        self.slots.append(TimelineSlot(start, record.at, left, left + width))
        self._lefts.append(left)
        return len(self.slots) - 1


def _first_at_least(places: Sequence[int], slot: int) -> int:
    return bisect_right(places, slot - 1)
