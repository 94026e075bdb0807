"""What stands on a terminal that is too small for the screen; the composer stays below it, and takes what is typed."""

from __future__ import annotations

from textual.geometry import Size
from textual.widgets import Static

LEAST = (48, 12)
"""Columns and lines, as the breakpoints of the screens have them."""


class TooSmall(Static):
    """The size that is needed, and the one there is."""

    def on_mount(self) -> None:
        """Follow the terminal: of its height, a widget of two lines hears nothing."""
        self._shown = Size()
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._show())

    def _show(self) -> None:
        size = self.app.size
        if size != self._shown and (size.width < LEAST[0] or size.height < LEAST[1]):
            self._shown = size
            columns, lines = size
            if self.screen.focused is None:  # what had it is hidden now
                self.call_after_refresh(self.screen.focus_next)
            self.update(f"needs {LEAST[0]} × {LEAST[1]} cells\nthis has {columns} × {lines}")
