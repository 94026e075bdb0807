"""Base class of the screens over the chat."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import Screen, ScreenResultType

from specchat.app.ui.action_table import ACTIONS
from specchat.app.ui.keys import CHAT, named

ALWAYS = ("keys", "help", "save-the-screen")
"""Actions whose keys work on every screen."""


class SubScreen(Screen[ScreenResultType]):
    """A screen over the chat, with the keys that work on all screens."""

    BINDINGS = named(CHAT, *(binding for name in ALWAYS for binding in ACTIONS[name].bindings()))

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close the screen; a second key that was typed before it closed does nothing."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
