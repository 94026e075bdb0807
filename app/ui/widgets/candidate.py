"""One of several replies to the same prompt, in a frame that tells them apart."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply, Stage
from specchat.app.ui.keys import named
from specchat.app.ui.pace import Pace
from specchat.app.ui.rendering.figures import percent
from specchat.app.ui.widgets.border_titles import show_titles
from specchat.app.ui.widgets.transcript import Transcript


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
        self.view.pace = pace
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
            self._show_title()
        self.view.update()
        self.set_class(self.reply is not None and self.reply is self._turn.reply, "-chosen")

    def _show_title(self) -> None:
        shown = self._title()
        if shown != self._shown:
            self._shown = shown
            show_titles(self, *shown)

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
