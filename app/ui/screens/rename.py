"""Asks for a chat's title."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.ui.keys import named


class RenameScreen(ModalScreen[str | None]):
    """Gives the new title, or None."""

    BINDINGS: ClassVar[list[BindingType]] = named("rename", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """One line of input in a frame."""
        with Vertical(id="rename") as frame:
            frame.border_title = "rename chat"
            frame.border_subtitle = "enter keeps · esc cancels"
            yield Input(escape_controls(self._title), placeholder="title", compact=True, select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """An empty title changes nothing."""
        self.dismiss(" ".join(clean_prompt(event.value).split()) or None)
