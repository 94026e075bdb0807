"""Keys that move through a list as in vim, beside the arrows."""

from __future__ import annotations

from textual.binding import Binding

LIST_KEYS = (
    Binding("j", "cursor_down", "Next line", show=False),
    Binding("k", "cursor_up", "Line before", show=False),
    Binding("g", "first", "First line", show=False),
    Binding("G,shift+g", "last", "Last line", show=False),
    Binding("ctrl+d", "page_down", "Page down", show=False),
    Binding("ctrl+u", "page_up", "Page up", show=False),
)
