"""Letters beside the messages in sight: the one that is typed is gone to."""

from __future__ import annotations

from textual.events import Key
from textual.screen import ModalScreen

LETTERS = "asdfghjklqwertyuiopzxcvbnm"
"""Those under the fingers first."""


class JumpScreen(ModalScreen[str | None]):
    """Gives the letter that was typed; None for any other key. The chat below it stays in sight."""

    def on_key(self, event: Key) -> None:
        """One key, and it is over."""
        event.stop()
        event.prevent_default()
        self.dismiss(event.character if event.character and event.character in LETTERS else None)

    def on_click(self) -> None:
        """A click elsewhere is another key."""
        self.dismiss(None)
