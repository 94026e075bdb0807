"""A text area that is drawn as it is wrapped."""

from __future__ import annotations

from textual.widgets import TextArea


class WrappedArea(TextArea):
    """Textual's, which wraps its lines anew when its width changes, but leaves what has been drawn of them before."""

    def on_resize(self) -> None:
        """Draw all lines again, once they are wrapped."""
        self.refresh()
