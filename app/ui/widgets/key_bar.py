"""The keys at the bottom. A narrow screen leaves those out whose panes have tabs."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

ROOMY = ("pane('chats')", "pane('panel')", "quit", "app.side_by_side")
"""Actions whose keys are shown where there is room."""
SPARE = ("timeline",)
"""Actions whose keys are shown where there is a lot of it."""


class KeyBar(Footer):
    """Textual's footer with a class on the keys that may be left out."""

    def compose(self) -> ComposeResult:
        """The keys of the focused widget, the screen and the app."""
        for key in super().compose():
            if isinstance(key, FooterKey) and key.action in ROOMY:
                key.add_class("-roomy")
            elif isinstance(key, FooterKey) and key.action in SPARE:
                key.add_class("-spare")
            yield key
