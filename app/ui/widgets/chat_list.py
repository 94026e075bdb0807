"""The list of chats: open, rename, delete, undo a deletion."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from specchat.app.chat.delivery import Marks
from specchat.app.sanitize import escape_controls
from specchat.app.storage.store import Chat
from specchat.app.ui.keys import registered
from specchat.app.ui.rendering.figures import cut_title

PIN = "▴"
"""Before the title of a pinned chat without another sign."""
STYLES = {"busy": "$fate-accepted", "news": "bold $fate-bonus"}
"""Styles of the signs before titles."""
PAGE, MARGIN = 200, 20
"""Number of lines that are added when the highlight is this close to the end; thousands would take a second."""
PADDING = 2
"""Cells of padding of each line, as in the style sheet."""
MINUTE, HOUR, DAY, WEEK, YEAR = 60, 3600, 86400, 7 * 86400, 365 * 86400
AGES = ((HOUR, MINUTE, "m"), (DAY, HOUR, "h"), (WEEK, DAY, "d"), (YEAR, WEEK, "w"), (float("inf"), YEAR, "y"))
"""Below the first number of seconds, count in units of the second."""


class KeyList(OptionList):
    """Textual's list with more keys."""

    BINDINGS: ClassVar[list[BindingType]] = registered(
        "list",
        Binding("j", "cursor_down", "Next line", show=False),
        Binding("k", "cursor_up", "Line before", show=False),
        Binding("g", "first", "First line", show=False),
        Binding("G,shift+g", "last", "Last line", show=False),
        Binding("ctrl+d", "page_down", "Page down", show=False),
        Binding("ctrl+u", "page_up", "Page up", show=False),
    )


class ChatList(KeyList):
    """The chats, newest first. ● answering, ◌ waiting, ◆ unread answer, else ▴ pinned; the open one is bold."""

    BINDINGS: ClassVar[list[BindingType]] = registered(
        "chats",
        Binding("r,f2", "request('rename')", "rename", key_display="r"),
        Binding("d,delete", "request('delete')", "delete", key_display="d"),
        Binding("p", "request('pin')", "pin"),
        Binding("u", "request('undo')", "undo"),
    )

    @dataclass
    class Requested(Message):
        """The user wants something done with a chat."""

        what: str
        """One of "open", "rename", "delete", "pin", and "undo", which brings the last deleted chat back."""
        chat: Chat | None
        """The highlighted one, if any."""

    def __init__(self, **options: Any) -> None:
        super().__init__(compact=True, **options)
        self.chats: list[Chat] = []
        self.restored: int | None = None
        """The id of a chat that was restored: it is highlighted once it is in the list."""
        self._open: int | None = None
        self._marks = Marks()
        self._now = 0.0
        self._listed = PAGE
        """How many of the chats are lines of the list."""
        self._drawn: list[Content] = []
        """Those lines, as they were drawn last."""

    def show(self, chats: list[Chat], opened: Chat | None, marks: Marks, now: float) -> None:
        """Show these chats. Nothing is drawn where nothing has changed.

        With the focus, the highlight stays on its chat, or in its line if the chat is gone; otherwise it is on the open
        chat.
        """
        line = self.highlighted or 0
        wanted = self.chats[line].id if self.chats else None
        self.set_class(not chats, "-empty")
        self.chats, self._open, self._marks, self._now = chats, opened.id if opened else None, marks, now
        places: dict[int | None, int] = {chat.id: place for place, chat in enumerate(chats)}
        if not self.has_focus:
            place, self.restored = places.get(self._open), None
        elif self.restored in places:
            place, self.restored = places[self.restored], None
        else:
            place = places.get(wanted, min(line, len(chats) - 1)) if chats else None
        self._listed = max(self._listed, 0 if place is None else place + MARGIN)
        self._fill()
        self.highlighted = place

    def on_focus(self) -> None:
        """Highlight the newest chat if none is open."""
        if self.highlighted is None and self.chats:
            self.highlighted = 0

    def on_resize(self) -> None:
        """Titles are cut to the width."""
        highlighted = self.highlighted
        self._fill()
        self.highlighted = highlighted

    def watch_show_vertical_scrollbar(self) -> None:
        """Also where a scrollbar takes a column."""
        self.call_after_refresh(self.on_resize)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        event.stop()
        self.action_request("open")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Close to the end of the list: more of it."""
        if event.option_index >= self._listed - MARGIN and self._listed < len(self.chats):
            added = self.chats[self._listed : self._listed + PAGE]
            self._listed += len(added)
            self.add_options([Option(self._line(chat)) for chat in added])

    def action_request(self, what: str) -> None:
        """Ask for something to be done with the highlighted chat."""
        chat = self.chats[self.highlighted] if self.highlighted is not None and self.chats else None
        if chat is not None or what == "undo":
            self.post_message(self.Requested(what, chat))

    def _fill(self) -> None:
        lines = [self._line(chat) for chat in self.chats[: self._listed]]
        if not self.chats:
            lines.append(Content.styled("no chats yet", "$quiet"))
        before, self._drawn = self._drawn, lines
        same = self.option_count == len(before) == len(lines)
        if not same or (self.options[0].disabled and not lines[0].is_same(before[0])):
            self.set_options([Option(line, disabled=not self.chats) for line in lines])
            return
        for number, (line, drawn) in enumerate(zip(lines, before, strict=True)):
            if not line.is_same(drawn):
                self.replace_option_prompt_at_index(number, line)

    def _line(self, chat: Chat) -> Content:
        age = age_of(self._now - chat.updated_at)
        title = " ".join(escape_controls(chat.title).split()) or "untitled"
        sign, part = self._marks.sign(chat.id)
        if chat.pinned and not sign.strip():
            sign = sign.replace(" ", PIN, 1)
        width = max(self.scrollable_content_region.width - PADDING - cell_len(age) - len(sign) - 1, 4)
        cut = set_cell_size(cut_title(title, width), width)
        named = cut, "bold $primary" if chat.id == self._open else ""
        return Content.assemble((sign, STYLES[part]), named, (f" {age}", "$quiet"))


def age_of(seconds: float) -> str:
    """3700 as 1h."""
    if seconds < MINUTE:
        return "now"
    return next(f"{int(seconds // unit)}{name}" for limit, unit, name in AGES if seconds < limit)
