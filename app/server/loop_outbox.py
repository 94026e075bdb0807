"""The way of events from the engine's thread to an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from specchat.engine import Event, Finished, Outbox, Round

GATHER_S = 0.002
"""From the first event of a round to its delivery: those of the other rows come meanwhile."""
PACE_S = 1 / 30
"""Least time between deliveries, but for events that somebody waits for: as often as the app draws."""


class LoopOutbox(Outbox):
    """Outbox whose events are handed to a function on an event loop, many at a time.

    A loop that wakes takes the engine's memory out of the processor's caches, whatever it has to do: a round of 64
    requests wakes it once, and so do several short rounds of one request. No thread waits in between.

    Args:
        loop: where `deliver` is called.
        deliver: takes the events, in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[Event]], None]) -> None:
        super().__init__()
        self._loop = loop
        self._take = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        """Whether a delivery is to come within `GATHER_S`."""
        self._later = False
        """Whether one is to come within `PACE_S`."""

    def put(self, event: Event) -> None:
        """Append one event; the loop is woken unless it will look in time."""
        super().put(event)
        if not self._soon and (not self._later or _is_awaited(event)):
            self._soon = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to read
                self._loop.call_soon_threadsafe(self._deliver_in, GATHER_S)

    def _deliver_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._soon = self._later = False  # before the drain: what arrives from now on wakes the loop
        events = self.drain()
        if events:
            self._later = True
            self._deliver_in(PACE_S)
            self._take(events)


def _is_awaited(event: Event) -> bool:
    """Whether it is the first or the last of a reply."""
    return isinstance(event, Finished) or (isinstance(event, Round) and not event.number)
