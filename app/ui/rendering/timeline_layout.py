"""Layout of the timeline: the columns of each round, the same time at the same column in every lane.

Bars are true to scale. Rounds of one batch share a slot. Between two slots lies one empty cell, or `PAUSE` of them
where time passed: pauses and the reading of prompts are cut to that, and a bar longer than `MOST` to so much; both are
marked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from specchat.app.chat.reply import Reply
from specchat.engine import Round

SCALES_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Milliseconds of a cell."""
USUAL = 6
"""Cells of a usual round, unless the user has zoomed."""
MOST = 8 * USUAL
"""Cells of the longest bar."""
PAUSE = 3
"""Cells of a pause."""


@dataclass(slots=True)
class TimelineSlot:
    """One round of the batch: seconds, and the columns it fills."""

    start: float
    end: float
    left: int
    right: int
    cut: bool = False
    """Whether the bar is shorter than its time."""
    late: bool = False
    """Whether time passed before it."""


class TimelineLayout:
    """The lanes of some replies, growing with them.

    Args:
        replies: the lanes, top to bottom.
        scale: index into `SCALES_MS`, as the user chose it; otherwise the usual round says it.
        own: how many of the lanes, from the first on, are of the chat that is shown. Once they have ended, the others
            are shown up to there.
    """

    def __init__(self, replies: Sequence[Reply], scale: int | None = None, own: int | None = None) -> None:
        self.replies = list(replies)
        self.own = len(self.replies) if own is None else own
        self.slots: list[TimelineSlot] = []
        self._lefts: list[int] = []
        self.has_pauses = self.has_cuts = False
        """Whether time was left out between two rounds, and whether a bar is shorter than its time."""
        self.scale = scale
        """Index into `SCALES_MS`; None until there are rounds to choose it by."""
        self._chosen = scale is not None
        self._judged = 0
        """Slots when the scale was chosen last."""
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

    @property
    def stale(self) -> bool:
        """Whether rounds were replaced by fewer ones, after a server reported its tokens."""
        pairs = zip(self._places, self.replies, strict=True)
        return any(len(places) > len(reply.rounds) for places, reply in pairs)

    def update(self) -> bool:
        """Add the new rounds; returns whether there were any."""
        end = self._end()
        new = [
            (record.at - record.seconds, lane, record)
            for lane, (reply, places) in enumerate(zip(self.replies, self._places, strict=True))
            for record in reply.rounds[len(places) :]
            if lane < self.own or record.at - record.seconds < end
        ]
        if not new:
            return False
        self._choose_scale(len(self.slots) + len(new))
        for start, lane, record in sorted(new, key=lambda item: item[0]):
            self._places[lane].append(self._slot(start, record))
        return True

    def _end(self) -> float:
        """When the lanes of the own chat ended; infinite while one is running."""
        mine = self.replies[: self.own]
        if any(reply.running for reply in mine) or not any(reply.rounds for reply in mine):
            return inf
        return max(reply.rounds[-1].at for reply in mine if reply.rounds)

    def _choose_scale(self, rounds: int) -> None:
        """Choose the scale by all rounds so far, first ones aside, whenever their number has doubled."""
        if self._chosen or rounds < 2 * self._judged:
            return
        self._judged = rounds
        known = [record for reply in self.replies for record in reply.rounds]
        usual = median(record.seconds for record in ([r for r in known if r.number] or known)) * 1000
        scale = min(range(len(SCALES_MS)), key=lambda i: abs(usual / SCALES_MS[i] - USUAL))
        if scale == self.scale:
            return
        self.scale = scale
        slots, self.slots, self._lefts = self.slots, [], []
        self.has_pauses = self.has_cuts = False
        for slot in slots:
            self._add(slot.start, slot.end, slot.end - slot.start)

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
        return self._add(start, record.at, record.seconds)

    def _add(self, start: float, end: float, seconds: float) -> int:
        last, cell_s = self.slots[-1] if self.slots else None, self.ms / 1000
        late = last is not None and start - last.end > cell_s
        left = (last.right if last else 0) + (PAUSE if late else 1)
        cells = max(1, round(seconds / cell_s))
        cut = cells > MOST
        self.slots.append(TimelineSlot(start, end, left, left + min(cells, MOST), cut, late))
        self.has_pauses, self.has_cuts = self.has_pauses or late, self.has_cuts or cut
        self._lefts.append(left)
        return len(self.slots) - 1


def _first_at_least(places: Sequence[int], slot: int) -> int:
    return bisect_right(places, slot - 1)
