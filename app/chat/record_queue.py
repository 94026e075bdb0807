"""Records on their way to the screen: what is stored of them is stored before it is shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from specchat.engine import Record

STORE_WAIT_S = 0.005
"""How long a frame waits for its records to be stored, which takes a fifth of that; then the next frame shows them."""
LONGEST_WAIT_S = 1.0
"""Records are shown after this even if they are not stored: the disk hangs, or another program locks the file."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Records that the source gave at once."""

    records: Sequence[Record]
    stored: Future[None] | None
    """None if nothing of them is to be stored."""
    at: float
    """`time.monotonic` when they came."""

    @property
    def can_be_shown(self) -> bool:
        """Whether its records are stored, or could not be, or have waited long enough."""
        return self.stored is None or self.stored.done() or time.monotonic() > self.at + LONGEST_WAIT_S


class RecordQueue:
    """Keeps records in the order of their arrival until they may be shown."""

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque()

    def add(self, records: Sequence[Record], stored: Future[None] | None) -> None:
        """Put records behind the others; `stored` ends when they are stored, None if nothing of them is to be."""
        if records:
            self._arrivals.append(_Arrival(records, stored, time.monotonic()))

    def due(self) -> Iterator[Record]:
        """Take out what may be shown, after a short wait for the newest to be stored."""
        if self._arrivals and (newest := self._arrivals[-1].stored) is not None:
            wait([newest], STORE_WAIT_S)
        while self._arrivals and self._arrivals[0].can_be_shown:
            yield from self._arrivals.popleft().records

    def rest(self) -> Iterator[Record]:
        """Take out all, stored or not."""
        while self._arrivals:
            yield from self._arrivals.popleft().records
