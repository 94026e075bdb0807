"""On a narrow screen: which of the panes is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.content import Content
from textual.widgets import Static

from specchat.app.chat.active_conversations import Marks


class PaneTabs(Static):
    """Names of panes. A click on one runs the screen's action `tab` with it."""

    def __init__(self, panes: Sequence[str], first: str, **options: Any) -> None:
        super().__init__(**options)
        self._panes = panes
        self._shown = first
        self._sign = ""

    def on_mount(self) -> None:
        """Show the first pane as selected."""
        self.show(self._shown)

    def mark(self, marks: Marks) -> None:
        """Give the chats' tab the sign of the chat that wants most to be seen."""
        sign = "◆" if marks.news else "●" if marks.answering else ""
        if sign != self._sign:
            self._sign = sign
            self.show(self._shown)

    def show(self, pane: str) -> None:
        """Mark the pane that is shown."""
        self._shown = pane
        signs = {"chats": self._sign}  # in place of a space, so that no name moves
        tabs = [
            Content.from_markup(f"[@click=screen.tab('{name}')]{signs.get(name) or ' '}{name} [/]").stylize(
                "reverse bold" if name == pane else "dim"
            )
            for name in self._panes
        ]
        self.update(Content(" ").join(tabs))
