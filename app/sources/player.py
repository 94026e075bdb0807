"""Plays a recorded trace at its own speed, by an injected clock, without a model and without torch."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import nextafter

from specchat.app.sources.source import Source
from specchat.engine import Admitted, EngineError, Finished, Record, Request, Round

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
IDLE_S = 1.0
"""Longest gap between two replies; longer ones are shortened to this."""


class Player(Source):
    """Source that returns the records of a trace at the times they were recorded.

    Replies end and draft as they were recorded; commands that would change them are ignored.
    """

    def __init__(
        self, records: Iterable[Record], name: str = "trace", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.paused = False
        self.position = 0.0
        """Seconds into the trace."""
        self._records = list(records)
        self._times = schedule(self._records)
        self.duration = self._times[-1] if self._times else 0.0
        """Seconds that the whole trace takes at its own speed."""
        self._clock = clock
        self._speed = SPEEDS.index(1.0)
        self._given = 0
        self._now = clock()

    @property
    def speed(self) -> float:
        """How much faster than recorded the trace is played."""
        return SPEEDS[self._speed]

    @property
    def ended(self) -> bool:
        """Whether every record has been returned."""
        return self._given == len(self._records)

    def start(self) -> None:
        """Begin at the first record."""
        self._now = self._clock()

    def drain(self) -> list[Record]:
        """The records whose time has come since the last call."""
        self._advance()
        upto = bisect_right(self._times, self.position)
        due, self._given = self._records[self._given : upto], upto
        return due

    def pause(self) -> None:
        """Stop the clock of the trace."""
        self._advance()
        self.paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._advance()
        self.paused = False

    def step(self) -> None:
        """Go to the end of the next round, and of the rounds of other requests in the same batch."""
        self._advance()
        index = next((i for i in range(self._given, len(self._records)) if isinstance(self._records[i], Round)), None)
        self.position = self.duration if index is None else max(self.position, self._end_of_batch(index))

    def seek(self, position: float) -> bool:
        """Go to this time. Returns whether that is back; all records up to it are then returned again."""
        self._advance()
        position = min(max(position, 0.0), self.duration)
        back = position < self.position
        if back:
            self._given = 0
        self.position = position
        return back

    def back(self) -> bool:
        """Go to just before the last returned round. Returns whether there was one; see `seek`."""
        last = next((i for i in reversed(range(self._given)) if isinstance(self._records[i], Round)), None)
        return last is not None and self.seek(nextafter(self._times[last], -1.0))

    def to_rejection(self) -> bool:
        """Go to the end of the next round with a rejection. Returns whether there is one."""
        self._advance()
        for index in range(self._given, len(self._records)):
            record = self._records[index]
            if isinstance(record, Round) and record.accepted < record.tested:
                self.position = self._end_of_batch(index)  # may be back, but only before records not returned yet
                return True
        return False

    def faster(self, steps: int = 1) -> None:
        """Go up (or, with a negative number, down) the list of speeds."""
        self._advance()
        self._speed = min(max(self._speed + steps, 0), len(SPEEDS) - 1)

    def restart(self) -> None:
        """Begin again; all records are returned again."""
        self._advance()
        self.position, self._given, self.paused = 0.0, 0, False

    def submit(self, request: Request) -> None:  # noqa: ARG002
        """Refuse.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"{self.name} is a replay and cannot answer: start specchat without a trace to chat")

    def examine(self, request: Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"{self.name} is a replay and computes nothing")

    def _end_of_batch(self, index: int) -> float:
        """When the last round of the same batch is due."""
        first = self._records[index]
        for later in range(index + 1, len(self._records)):
            record = self._records[later]
            if isinstance(record, Round) and isinstance(first, Round):
                if record.at - record.seconds >= first.at:
                    break
                index = later
        return self._times[index]

    def _advance(self) -> None:
        now = self._clock()
        if not self.paused:
            self.position = min(self.position + (now - self._now) * self.speed, self.duration)
        self._now = now


def schedule(records: Sequence[Record]) -> list[float]:
    """When each record is due. Gaps in which no request was open are cut to `IDLE_S`."""
    submitted = {r.request_id: r.at - r.queued_s for r in records if isinstance(r, Admitted)}
    times: list[float] = []
    due, before, running = 0.0, None, 0
    for record in records:
        at = submitted.get(record.request_id, before) if isinstance(record, Request) else record.at
        if at is not None:
            gap = max(at - (at if before is None else before), 0.0)
            due += gap if running else min(gap, IDLE_S)
            before = at if before is None else max(at, before)
        times.append(due)
        running += isinstance(record, Request)
        running -= isinstance(record, Finished)
    return times
