"""Search over all chats as one types."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specchat.app.sanitize import escape_controls
from specchat.app.storage.search_index import ATTACHED, BEGIN, END, Hit
from specchat.app.ui.keys import named

SIGNS = {"user": "▌ ", "assistant": "  ", ATTACHED: "▤ ", "": "# "}
"""Before a hit in a prompt, in a reply, in what was sent along with a prompt, in a title."""


class SearchScreen(ModalScreen[Hit | None]):
    """Gives the hit that was chosen, or None."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"search--hit", "search--title"}
    BINDINGS: ClassVar[list[BindingType]] = named(
        "search",
        Binding("escape,ctrl+k", "dismiss", "close", key_display="esc"),
        Binding("down", "move(1)", "next", show=False),
        Binding("up", "move(-1)", "before", show=False),
        Binding("pagedown", "move(10)", "further", show=False),
        Binding("pageup", "move(-10)", "back", show=False),
    )

    def __init__(self, find: Callable[[str], Future[list[Hit] | None]]) -> None:
        super().__init__()
        self._find = find
        self._hits: list[Hit] = []

    def compose(self) -> ComposeResult:
        """A line of input above the hits."""
        with Vertical(id="search") as frame:
            frame.border_title = "search all chats"
            frame.border_subtitle = "enter opens the chat there · esc closes"
            yield Input(placeholder="words of a title, a prompt, a reply or a file", compact=True)
            yield OptionList(id="search-list", compact=True)

    def on_mount(self) -> None:
        """The list is moved through from the line of input."""
        self.query_one(OptionList).can_focus = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search anew with every key."""
        self._search(event.value)

    def on_input_submitted(self) -> None:
        """Open the highlighted hit."""
        place = self.query_one(OptionList).highlighted
        if place is not None and place < len(self._hits):
            self.dismiss(self._hits[place])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click."""
        self.dismiss(self._hits[event.option_index])

    def action_move(self, by: int) -> None:
        """Highlight another hit."""
        options = self.query_one(OptionList)
        if self._hits:
            options.highlighted = min(max((options.highlighted or 0) + by, 0), len(self._hits) - 1)

    @work(exclusive=True, group="search", exit_on_error=False)
    async def _search(self, text: str) -> None:
        found = await asyncio.wrap_future(self._find(text))
        self._hits = found or []
        options = self.query_one(OptionList)
        options.clear_options()
        if not self._hits and text.strip():
            options.add_option(Option(Text("nothing found", style="dim"), disabled=True))
        options.add_options([Option(self._line(hit)) for hit in self._hits])
        options.highlighted = 0 if self._hits else None

    def _line(self, hit: Hit) -> Text:
        """The hit and, behind it, the chat it is in."""
        found = self.get_component_rich_style("search--hit", partial=True)
        line = Text(SIGNS[hit.role], no_wrap=True, overflow="ellipsis")
        for number, part in enumerate(" ".join(hit.excerpt.split()).split(BEGIN)):
            marked, end, rest = part.partition(END) if number else ("", "", part)
            line.append(escape_controls(marked), found)
            line.append(escape_controls(rest if end or not number else part))
        if hit.message_id is not None:
            title = " ".join(escape_controls(hit.title).split())
            line.append(f"  {title}", self.get_component_rich_style("search--title", partial=True))
        line.truncate(max(self.query_one(OptionList).scrollable_content_region.width, 20), overflow="ellipsis")
        return line
