"""On a narrow screen: which of the panes is shown."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

PANES = ("chat", "chats", "panel", "rounds")


class PaneTabs(Static):
    """Names to click on."""

    def on_mount(self) -> None:
        """The chat is shown first."""
        self.show("chat")

    def show(self, pane: str) -> None:
        """Mark the pane that is shown."""
        tabs = [
            Content.from_markup(f"[@click=screen.tab('{name}')] {name} [/]").stylize(
                "reverse bold" if name == pane else "dim"
            )
            for name in PANES
        ]
        self.update(Content(" ").join(tabs))
