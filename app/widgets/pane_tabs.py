"""On a narrow screen: which of the three panes is shown."""

from __future__ import annotations

from typing import ClassVar

from textual.content import Content
from textual.widgets import Static


class PaneTabs(Static):
    """Three names to click on."""

    PANES: ClassVar[tuple[str, ...]] = ("chat", "chats", "panel")
    FIRST: ClassVar[str] = "chat"

    def on_mount(self) -> None:
        """The first one is shown first."""
        self.show(self.FIRST)

    def show(self, pane: str) -> None:
        """Mark the pane that is shown."""
        tabs = [
            Content.from_markup(f"[@click=screen.tab('{name}')] {name} [/]").stylize(
                "reverse bold" if name == pane else "dim"
            )
            for name in self.PANES
        ]
        self.update(Content(" ").join(tabs))
