"""The way of events from the engine's thread to an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from specchat.engine import Event, Outbox


class LoopOutbox(Outbox):
    """Outbox whose events are handed to a function on an event loop, many at a time.

    The loop is woken once for all events that gather until it gets to run: a round of 64 requests costs one wake-up,
    and no thread waits in between.

    Args:
        loop: where `deliver` is called.
        deliver: takes the events, in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[Event]], None]) -> None:
        super().__init__()
        self._loop = loop
        self._take = deliver
        self._woken = False

    def put(self, event: Event) -> None:
        """Append one event; the loop is woken unless it is about to run."""
        super().put(event)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to read
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # before the drain: what arrives from now on wakes the loop again
        self._take(self.drain())
