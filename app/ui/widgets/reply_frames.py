"""Frames around one reply: a candidate, or a lane of the side-by-side mode."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply, Stage
from specchat.app.sanitize import escape_controls
from specchat.app.side_by_side.duet import SIDES, Duet
from specchat.app.ui.keys import named
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.figures import percent
from specchat.app.ui.widgets.side_summary import BY_STREAM, status
from specchat.app.ui.widgets.transcript import Transcript
from specchat.engine import Order


class CandidateFrame(Vertical):
    """The tokens of one reply, without its prompt. The frame has its number and figures; a click on it picks it."""

    BINDINGS: ClassVar[list[BindingType]] = named("candidate", Binding("enter", "pick", "go on with this one"))

    def __init__(self, turn: Turn, place: int, pace: Pace) -> None:
        """Make it.

        Args:
            turn: The prompt and its replies.
            place: Index of this reply among them.
            pace: Says how often the screen is drawn.
        """
        super().__init__(classes="candidate")
        self.place = place
        self.view = Transcript(Conversation(turns=[turn]), lambda _: [] if self.reply is None else [self.reply])
        self.view.pace, self.view.forkable = pace, False
        self._pace = pace
        self._turn = turn
        self._shown = ("", "")
        self._updates = 0
        """Since figures were taken last."""

    @property
    def reply(self) -> Reply | None:
        """The reply, once it has been asked for."""
        return self._turn.replies[self.place] if self.place < len(self._turn.replies) else None

    def compose(self) -> ComposeResult:
        """The tokens."""
        yield self.view

    async def action_pick(self) -> None:
        """Go on with this reply."""
        await self.run_action(f"screen.pick({self.place})")

    def update(self) -> None:
        """Draw what has changed in the reply."""
        self._updates += 1
        if self._updates >= self._pace.figures_every // self._pace.turns:
            self._updates = 0
            if self.reply is not None:
                self.reply.take_figures()
            if (shown := self._title()) != self._shown:
                self._shown = shown
                self.border_title, self.border_subtitle = shown
        self.view.update()
        self.set_class(self.reply is not None and self.reply is self._turn.reply, "-chosen")

    def _title(self) -> tuple[str, str]:
        reply, number = self.reply, self.place + 1
        if reply is None:
            return f" {number} ", "queued" if self._turn.reply is None else ""
        metrics = reply.figures.metrics
        accepted = f"· {percent(metrics.acceptance)} accepted " if metrics.tested else ""
        if reply.stage is Stage.WAITING:
            accepted = "· waits for a free slot "
        if len(self._turn.replies) < 2:  # it failed before it began
            return f" {number} ", ""
        link = f"[@click=screen.pick({self.place})] go on with {number} [/]"
        return f" [b]{number}[/b] {accepted}", link


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
        """The set-up, as far as it is known."""
        clock = f" · {BY_STREAM}" if self._duet.observes(self._side) else ""
        target = "" if self._duet.same_target else f"  {escape_controls(self._duet.targets[self._side])}"
        self._title.update(
            Content.assemble(
                (f"{SIDES[self._side]} ", "dim"),
                (escape_controls(self._duet.labels[self._side]), "bold"),
                clock,
                target,
            )
        )

    def update(self) -> None:
        """Draw what has changed in the lane since the last call."""
        reply = self._duet.reply(self._side)
        if reply is not None:
            reply.take_figures()
        self.transcript.update()
        waits = self._side == 1 and self._duet.order is Order.SEQUENTIAL
        parts = status(reply, self._duet.tally(self._side), waits)
        if parts != self._shown:
            self._shown = parts
            room = max(self.size.width - 4, 12)
            while len(parts) > 1 and len(" · ".join(parts)) > room:
                parts = parts[:-1]
            self._line.update(Content.assemble((parts[0], "bold"), *(f" · {part}" for part in parts[1:])))
