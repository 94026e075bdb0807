"""Outbox: thread-safe queue of events from the engine to a reader."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

from specchat.engine.events import Event


class Outbox:
    """Queue of events: the engine appends; a reader drains it or blocks for the next event."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()

    def put(self, event: Event) -> None:
        """Append one event and wake a blocked reader."""
        self._events.put(event)

    def drain(self) -> list[Event]:
        """Remove and return all events; never blocks."""
        events: list[Event] = []
        with suppress(Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def get(self, timeout: float | None = None) -> Event | None:
        """Remove and return the next event, or None if none arrives within `timeout` seconds."""
        with suppress(Empty):
            return self._events.get(timeout=timeout)
        return None
