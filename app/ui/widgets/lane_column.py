"""One of two columns of the side-by-side mode: a lane's setup, its transcript and its figures."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from specchat.app.side_by_side.duet import SIDES, Duet
from specchat.app.ui.widgets.side_summary import BY_STREAM, status
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Order


class LaneColumn(Vertical):
    """The left or the right lane of a duet."""

    def __init__(self, duet: Duet, side: int, **options: Any) -> None:
        super().__init__(**options)
        self._duet = duet
        self._side = side
        self._shown: list[str] | None = None
        self.transcript = Transcript(duet.conversations[side])
        self.transcript.forkable = False
        self._title = Static("", classes="lane-title")
        self._line = Static("", classes="lane-line")

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self._title
        yield self.transcript
        yield self._line

    def on_mount(self) -> None:
        """Say which lane it is."""
        self.show_set_up()

    def show_set_up(self) -> None:
        """The known part of the setup."""
        clock = f" · {BY_STREAM}" if self._duet.observes(self._side) else ""
        target = "" if self._duet.same_target else f"  {self._duet.targets[self._side]}"
        side, label = SIDES[self._side], self._duet.labels[self._side]
        self._title.update(Content.assemble((f"{side} ", "$quiet"), (label, "bold"), clock, target))

    def update(self) -> None:
        """Draw what has changed in the lane since the last call."""
        lane = self._duet.lanes[self._side]
        reply = lane.reply
        if reply is not None:
            reply.take_figures()
        self.transcript.update()
        waits = self._side == 1 and self._duet.order is Order.SEQUENTIAL
        parts = status(reply, lane.tally, waits)
        if parts != self._shown:
            self._shown = parts
            room = max(self.size.width - 4, 12)
            while len(parts) > 1 and len(" · ".join(parts)) > room:
                parts = parts[:-1]
            self._line.update(Content.assemble((parts[0], "bold"), *(f" · {part}" for part in parts[1:])))
