"""The one place where the interface drains an engine, a replay, or two lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from textual.message_pump import MessagePump
from textual.timer import Timer

from specchat.app.chat.reply import Stage
from specchat.app.ui.frame_budget import FrameBudget
from specchat.app.ui.pace import FRAME_S, Pace
from specchat.engine import Record


class Drained(Protocol):
    """Hands records to the replies they belong to, and stores them."""

    def drain(self) -> Iterable[Record]:
        """Take in what has come; gives the records that concern the engine as a whole, in order."""

    @property
    def stage(self) -> Stage | None:
        """How far the running reply has got that is furthest; None where none runs."""


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
        self.pace = Pace()
        """How often it runs; what draws follows it."""
        self._timers = timers
        self._source = source
        self._handle = handle
        self._draw = draw
        self._frames: Timer | None = None
        self._budget: FrameBudget | None = None

    def start(self) -> None:
        """Run with every frame from here on."""
        self._frames = self._timers.set_interval(self.pace.frame_s, self.run)

    def suit(self, device: str) -> None:
        """Leave its time to an engine on this device, named as in `Ready`: on a GPU, it needs none of ours."""
        self._budget = FrameBudget() if device.startswith("cpu") else None

    def run(self) -> None:
        """Run once."""
        for record in self._source.drain():
            self._handle(record)
        self._draw()
        self._follow(FRAME_S if self._budget is None else self._budget.after(self._source.stage))

    def _follow(self, frame_s: float) -> None:
        """Let frames follow each other like this."""
        if frame_s != self.pace.frame_s and self._frames is not None:
            self._frames.stop()
            self.pace.frame_s = frame_s
            self.start()
