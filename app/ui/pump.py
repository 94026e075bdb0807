"""The one place where the interface drains an engine, a replay, or two lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from textual.message_pump import MessagePump

from specchat.app.ui.pace import Pace
from specchat.engine import Record


class Drained(Protocol):
    """Hands records to the replies they belong to, and stores them."""

    def drain(self) -> Iterable[Record]:
        """Take in what has come; gives the records that concern the engine as a whole, in order."""


class Pump:
    """Drains a source with every frame, hands its records on, and has the screen drawn.

    Args:
        timers: The app or the screen whose timers it runs on; it stops with them.
        source: What is drained.
        handle: Called with each record that concerns the engine as a whole.
        draw: Called once the records of a frame are taken in.
    """

    def __init__(
        self, timers: MessagePump, source: Drained, handle: Callable[[Record], None], draw: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._source = source
        self._handle = handle
        self._draw = draw

    def start(self) -> None:
        """Run with every frame from here on."""
        self._frames = self._timers.set_interval(Pace().frame_s, self.run)

    def set_pace(self, pace: Pace) -> None:
        """Run as often as this from here on."""
        self._frames.stop()
        self._frames = self._timers.set_interval(pace.frame_s, self.run)

    def run(self) -> None:
        """Run once."""
        for record in self._source.drain():
            self._handle(record)
        self._draw()
