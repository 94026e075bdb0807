"""One of several replies to the same prompt, in a frame that tells them apart."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from app.conversation import Conversation, Turn
from app.reply import Reply, Stage
from app.widgets.figures import percent
from app.widgets.transcript import Transcript

TITLE_EVERY = 3
"""The frame is drawn again with every third update of the tokens: figures are to be read."""


class CandidateView(Transcript):
    """The tokens of one reply, without its prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.pick_focused", "go on with this one"),
    ]

    def __init__(self, turn: Turn, place: int, **options: Any) -> None:
        super().__init__(Conversation(turns=[turn]), **options)
        self.turn, self.place = turn, place

    @property
    def reply(self) -> Reply | None:
        """The reply, once it has been asked for."""
        if self.turn.candidates:
            return self.turn.candidates[self.place]
        return self.turn.reply if self.place == 0 else None

    def parts(self) -> list[Turn | Reply]:
        """Nothing but the reply."""
        return [self.reply] if self.reply is not None else []


class CandidateFrame(Vertical):
    """The frame says which one it is, how its drafts fare, and is clicked to go on with it."""

    def __init__(self, turn: Turn, place: int) -> None:
        super().__init__(classes="candidate")
        self.view = CandidateView(turn, place)
        self._turn, self._place = turn, place
        self._shown = ("", "")
        self._updates = 0

    def compose(self) -> ComposeResult:
        """The tokens."""
        yield self.view

    def update(self) -> None:
        """Show what has become of the reply."""
        self.view.update()
        self._updates += 1
        if self._updates % TITLE_EVERY == 0:
            self._show_title()
        self.set_class(self.view.reply is not None and self.view.reply is self._turn.reply, "-chosen")

    def _show_title(self) -> None:
        shown = self._title()
        if shown != self._shown:
            self._shown = shown
            self.border_title, self.border_subtitle = shown

    def _title(self) -> tuple[str, str]:
        reply, number = self.view.reply, self._place + 1
        if reply is None:
            return f" {number} ", "queued" if self._turn.reply is None else ""
        accepted = f"· {percent(reply.statistics.acceptance)} accepted " if reply.statistics.tested else ""
        if reply.stage is Stage.WAITING:
            accepted = "· waits for a free slot "
        if not self._turn.candidates:  # it failed before it began
            return f" {number} ", ""
        link = f"[@click=screen.pick({self._place})] go on with {number} [/]"
        return f" [b]{number}[/b] {accepted}", link
