"""The figures of a reply beside the conversation: drawn when they are taken, or when another reply is looked at."""

from __future__ import annotations

from textual.screen import Screen

from specchat.app.chat.conversation import Conversation
from specchat.app.ui.pump import Pace
from specchat.app.ui.screens.chat_layout import ChatLayout
from specchat.app.ui.screens.inspection import Inspection
from specchat.app.ui.screens.writing import Writing


class ShownFigures:
    """Keeps panel and timeline at the reply that is looked at.

    Args:
        screen: Pauses between rounds.
        widgets: Those of the screen.
        inspection: Knows the reply.
        writing: Has the gauge, which waits for the reply to end.
    """

    def __init__(self, screen: Screen[None], widgets: ChatLayout, inspection: Inspection, writing: Writing) -> None:
        self._screen = screen
        self._widgets = widgets
        self._inspection = inspection
        self._writing = writing
        self._updates = 0
        """Since figures were taken last."""
        self._state: tuple[object, ...] | None = None
        """As last drawn."""

    def forget(self) -> None:
        """Draw everything with the next update."""
        self._state = None

    def take(self, conversation: Conversation, pace: Pace) -> bool:
        """Take the figures of the running replies if that is due; whether it was. Called once with each update."""
        self._updates += 1
        if self._updates < pace.figures_every:
            return False
        self._updates = 0
        for reply in conversation.all_running:
            reply.take_figures()
        return True

    def draw(self, *, taken: bool) -> None:
        """Draw what has changed; `taken` says whether figures have just been taken."""
        reply = self._inspection.reply
        held = self._screen.has_class("-paused")
        state = (reply, reply.running, reply.stage, reply.figures, held)
        if state != self._state:
            if self._state is None or state[:2] != self._state[:2]:
                self._screen.refresh_bindings()
                if not reply.running:
                    self._writing.gauge.ask()
                self._writing.gauge.show()
                self._widgets.composer.cursor_blink = not reply.running  # a cursor that blinks is drawn all the time
            self._state = state
            self._widgets.panel.show(reply, held=held)
            self._inspection.update()
        elif taken:
            self._inspection.update()  # other lanes may have grown
