"""A list that is moved through with the keys of vim, beside the arrows."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import OptionList

from specchat.app.ui.keys import named


class KeyList(OptionList):
    """Textual's list with more keys."""

    BINDINGS: ClassVar[list[BindingType]] = named(
        "list",
        Binding("j", "cursor_down", "Next line", show=False),
        Binding("k", "cursor_up", "Line before", show=False),
        Binding("g", "first", "First line", show=False),
        Binding("G,shift+g", "last", "Last line", show=False),
        Binding("ctrl+d", "page_down", "Page down", show=False),
        Binding("ctrl+u", "page_up", "Page up", show=False),
    )
