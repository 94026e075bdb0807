"""On a narrow screen: which of the panes is shown."""

from __future__ import annotations

from typing import ClassVar

from textual.content import Content
from textual.widgets import Static

from app.marks import Marks


class PaneTabs(Static):
    """Names to click on."""

    _pane, _sign = "chat", ""

    PANES: ClassVar[tuple[str, ...]] = ("chat", "chats", "panel", "rounds")
    FIRST: ClassVar[str] = "chat"

    def on_mount(self) -> None:
        """The first one is shown first."""
        self.show(self.FIRST)

    def mark(self, marks: Marks) -> None:
        """The chats' tab has the sign of the chat that wants most to be seen."""
        sign = "◆" if marks.news else "●" if marks.answering else ""
        if sign != self._sign:
            self._sign = sign
            self.show(self._pane)

    def show(self, pane: str) -> None:
        """Mark the pane that is shown."""
        self._pane = pane
        signs = {"chats": f" {self._sign}".rstrip()}
        tabs = [
            Content.from_markup(f"[@click=screen.tab('{name}')] {name}{signs.get(name, '')} [/]").stylize(
                "reverse bold" if name == pane else "dim"
            )
            for name in self.PANES
        ]
        self.update(Content(" ").join(tabs))
