"""Lists over the chat: messages, attachments and search hits; and the text of an attachment."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from specchat.app.chat.attachments import label
from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.parts import tool_line
from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.search_index import ATTACHED, BEGIN, END, Hit
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.widgets.chat_list import KeyList

PADDING = 4
"""Cells on both sides of a line together."""
HIT_SIGNS = {"user": "▌ ", "assistant": "  ", ATTACHED: "▤ ", "": "# "}
"""Before a hit in a prompt, a reply, an attachment, or a title."""


class ItemsScreen(Dialog[tuple[str, int] | None]):
    """A list with its keys below it. Returns what to do with which item, by its index, or None."""

    TITLE = ""
    KEYS = ""
    CHOOSES = ""
    """What enter and a click do."""

    def __init__(self, first: int) -> None:
        super().__init__(classes="dialog")
        self._first = first
        """The item that is highlighted at first."""

    def compose(self) -> ComposeResult:
        """The list, and its keys below it."""
        with framed(Vertical(id="messages"), self.TITLE or "", "esc closes"):
            yield KeyList(id="messages-list", compact=True)
            yield Static(self.KEYS, id="messages-keys")

    def on_mount(self) -> None:
        """Show the items."""
        self._fill(self._first)
        self.query_one(KeyList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        event.stop()
        self.action_give(self.CHOOSES)

    def action_give(self, action: str) -> None:
        """Do this with the highlighted item, if it is allowed."""
        place = self.query_one(KeyList).highlighted
        if place is not None and self.allows(action, place):
            self.dismiss((action, place))

    def allows(self, action: str, place: int) -> bool:  # noqa: ARG002
        """Whether this can be done with an item."""
        return True

    def lines(self, width: int) -> Iterable[Content]:
        """The items, no wider than this."""
        raise NotImplementedError

    def _fill(self, place: int) -> None:
        options = self.query_one(KeyList)
        options.clear_options()
        options.add_options(self.lines((options.scrollable_content_region.width or 70) - PADDING))
        options.highlighted = min(place, options.option_count - 1) if options.option_count else None


def _line(prompt: Prompt) -> str:
    """A prompt, or the results of calls, on one line."""
    return escape_controls(" ".join((*map(tool_line, prompt.results), *prompt.text.split())))


class MessagesScreen(ItemsScreen):
    """Returns what to do (go, edit, regenerate, continue, fork) with which message, or None.

    Args:
        conversation: whose messages are listed.
        show: switches to another version of a prompt, or to another reply, by a number of places.
    """

    BINDINGS = registered(
        "messages",
        Binding("escape,ctrl+e", "dismiss", "close", key_display="esc"),
        Binding("e", "give('edit')", "edit"),
        Binding("r", "give('regenerate')", "another reply"),
        Binding("c", "give('continue')", "continue"),
        Binding("f", "give('fork')", "fork"),
        Binding("left", "switch('reply', -1)", "previous reply", priority=True),
        Binding("right", "switch('reply', 1)", "next reply", priority=True),
        Binding("shift+left", "switch('version', -1)", "previous version", priority=True),
        Binding("shift+right", "switch('version', 1)", "next version", priority=True),
    )
    TITLE, CHOOSES = "messages", "go"
    KEYS = (
        "enter goes there · e edits · r regenerates · c continues · f forks\n"
        "← → other replies · shift ← → other versions"
    )

    def __init__(self, conversation: Conversation, show: Callable[[Prompt | Reply | None, int], None]) -> None:
        super().__init__(len(conversation.prompts) - 1)
        self._conversation, self._show = conversation, show

    def on_resize(self) -> None:
        """Prompts are cut to the width."""
        self._fill(self.query_one(KeyList).highlighted or 0)

    def lines(self, width: int) -> Iterable[Content]:
        """The prompts, and which versions are shown."""
        for number, prompt in enumerate(self._conversation.prompts, start=1):
            several = [(name, each) for name, each in prompt.named_parts if len(each.siblings) > 1]
            versions = "  ".join(f"{name} ‹ {each.place} / {len(each.siblings)} ›" for name, each in several)
            text = Content(_line(prompt)).truncate(max(width - cell_len(versions) - 5, 8), ellipsis=True, pad=True)
            yield Content.assemble((f"{number:>3} ", "$primary"), text, " ", (versions, "$quiet"))

    def allows(self, action: str, place: int) -> bool:  # noqa: ARG002
        """Only with a message that is still there: a prompt that fails goes back into the composer."""
        there = place < len(self._conversation.prompts)
        if not there:
            self._fill(place)
        return there

    def action_switch(self, what: str, step: int) -> None:
        """Switch to another reply, or to another version of the prompt."""
        place = self.query_one(KeyList).highlighted
        if place is not None and self.allows(what, place):
            prompt = self._conversation.prompts[place]
            self._show(prompt.reply if what == "reply" else prompt, step)
            self._fill(place)


class AttachmentsScreen(ItemsScreen):
    """Returns what to do (open, expand, remove) with which attachment, or None.

    Args:
        unsent: of the prompt that is being written; only these can be expanded and removed.
        sent: of earlier prompts, each with the number of its message.
    """

    BINDINGS = [  # noqa: RUF012
        Binding("escape,alt+a", "dismiss", "close", key_display="esc"),
        Binding("x", "give('expand')", "expand"),
        Binding("d,delete", "give('remove')", "remove"),
    ]
    TITLE, CHOOSES = "attachments", "open"
    KEYS = "enter opens · of this prompt: x expands a paste, d removes"

    def __init__(self, unsent: Sequence[Attachment], sent: Sequence[tuple[int, Attachment]]) -> None:
        super().__init__(0)
        self._unsent, self._sent = unsent, sent

    def lines(self, width: int) -> Iterable[Content]:  # noqa: ARG002
        """A line for each attachment: the message that has it, and its name."""
        rows = [("this prompt", one) for one in self._unsent]
        rows += [(f"message {number}", one) for number, one in self._sent]
        return [Content.assemble((f"{where:<13}", "$quiet"), label(one)) for where, one in rows]

    def allows(self, action: str, place: int) -> bool:
        """Sent ones can only be opened."""
        return action == "open" or place < len(self._unsent)


class AttachmentScreen(Dialog[None]):
    """The text of an attachment, to be read and copied."""

    BINDINGS = [Binding("escape,q", "dismiss", "close", key_display="esc")]  # noqa: RUF012

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(classes="dialog")
        self._attachment = attachment

    def compose(self) -> ComposeResult:
        """A text area in a frame."""
        with framed(Vertical(id="attachment"), label(self._attachment), "esc closes"):
            text = escape_controls(self._attachment.text)
            yield TextArea(text, read_only=True, soft_wrap=False, show_line_numbers=True, compact=True)


class SearchScreen(Dialog[Hit | None]):
    """Searches all chats while the user types; returns the chosen hit, or None."""

    BINDINGS = registered(
        "search",
        Binding("escape,ctrl+k", "dismiss", "close", key_display="esc"),
        Binding("down", "move(1)", "next", show=False),
        Binding("up", "move(-1)", "before", show=False),
        Binding("pagedown", "move(10)", "further", show=False),
        Binding("pageup", "move(-10)", "back", show=False),
    )

    def __init__(self, find: Callable[[str], Future[list[Hit] | None]], words: str = "") -> None:
        super().__init__()
        self._find = find
        self._words = words
        """The text at first."""
        self._hits: list[Hit] = []
        self._searching = self._entered = False
        """Whether the hits of the present text are not known yet; whether enter was pressed then."""

    def compose(self) -> ComposeResult:
        """A line of input above the hits."""
        with framed(Vertical(id="search"), "search all chats", "enter opens the chat there · esc closes"):
            placeholder = "words of a title, a prompt, a reply or a file"
            yield Input(escape_controls(self._words), placeholder=placeholder, compact=True, select_on_focus=False)
            yield OptionList(id="search-list", compact=True)

    def on_mount(self) -> None:
        """The focus stays in the line of input."""
        self.query_one(OptionList).can_focus = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search again with every key."""
        self._searching, self._entered = True, False
        self._search(event.value)

    def on_input_submitted(self) -> None:
        """Return the highlighted hit; during a search, its first one when it is known."""
        self._entered = self._searching
        place = self.query_one(OptionList).highlighted
        if not self._searching and place is not None and place < len(self._hits):
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
            options.add_option(Option(Content.styled("nothing found", "$quiet"), disabled=True))
        width = max(options.scrollable_content_region.width, 20)
        options.add_options([_hit_line(hit).truncate(width, ellipsis=True) for hit in self._hits])
        options.highlighted = 0 if self._hits else None
        self._searching = False
        if self._entered:
            self.on_input_submitted()


def _hit_line(hit: Hit) -> Content:
    """The excerpt with the found words marked, followed by the chat's title."""
    first, *others = " ".join(hit.excerpt.split()).split(BEGIN)
    parts: list[str | tuple[str, str]] = [HIT_SIGNS[hit.role], first]
    for other in others:
        marked, _, rest = other.partition(END)
        parts += [(marked, "bold $primary"), rest]
    if hit.message_id is not None:
        parts.append((f"  {' '.join(hit.title.split())}", "$quiet"))
    return Content.assemble(*parts)
