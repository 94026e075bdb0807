"""The line below the composer that says what has just happened; empty most of the time."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.content import Content
from textual.notifications import Notification
from textual.timer import Timer
from textual.widgets import Static

SIGNS = {"information": "· ", "warning": "▲ ", "error": "✗ "}


class NoticeLine(Static):
    """Shows the newest notice until it expires, and takes no room without one. A click takes it away."""

    ALLOW_SELECT = False
    SEVERITIES: ClassVar = tuple(SIGNS)

    def __init__(self, **options: Any) -> None:
        super().__init__("", **options)
        self.display = False
        self._end: Timer | None = None

    def show(self, notice: Notification) -> None:
        """Show this notice in place of the one before."""
        text = Content.from_markup(notice.message) if notice.markup else Content(notice.message)
        self.update(Content.assemble(SIGNS[notice.severity], text))
        for severity in self.SEVERITIES:
            self.set_class(severity == notice.severity, f"-{severity}")
        self.display = True
        if self._end is not None:
            self._end.stop()
        self._end = self.set_timer(notice.timeout, self.clear)

    def clear(self) -> None:
        """Show nothing."""
        self.display = False

    def on_click(self) -> None:
        """It has been read."""
        self.clear()
