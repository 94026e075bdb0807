"""Outbox: thread-safe queue of events from the engine to a reader."""

from __future__ import annotations

import threading
from collections import deque

from specchat.engine.events import Event


class Outbox:
    """Queue of events: the engine appends; a reader drains it or blocks for the next event."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition()

    def put(self, event: Event) -> None:
        """Append one event and wake a blocked reader."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()

    def drain(self) -> list[Event]:
        """Remove and return all events; never blocks."""
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        return events

    def get(self, timeout: float | None = None) -> Event | None:
        """Remove and return the next event, or None if none arrives within `timeout` seconds."""
        with self._arrived:
            if not self._events:
                self._arrived.wait(timeout)
            return self._events.popleft() if self._events else None
