"""The list of attachments, of the prompt that is being written and of earlier ones, and one of them opened."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from specchat.app.chat.attachments import label
from specchat.app.sanitize import escape_controls
from specchat.app.storage.attachments import Attachment


class AttachmentAction(StrEnum):
    """What can be done with an attachment."""

    OPEN = "open"
    EXPAND = "expand"
    REMOVE = "remove"


class AttachmentsScreen(ModalScreen[tuple[AttachmentAction, int] | None]):
    """Gives what to do with which one, or None."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"attachments--aside"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,alt+a", "dismiss", "close", key_display="esc"),
        Binding("x", "give('expand')", "expand"),
        Binding("d,delete", "give('remove')", "remove"),
    ]

    def __init__(self, unsent: Sequence[Attachment], sent: Sequence[tuple[int, Attachment]]) -> None:
        """Make it.

        Args:
            unsent: Of the prompt that is being written.
            sent: Of earlier prompts, each with the number of its message.
        """
        super().__init__()
        self._unsent, self._sent = unsent, sent

    def compose(self) -> ComposeResult:
        """The list, and its keys below it."""
        with Vertical(id="messages") as frame:
            frame.border_title = "attachments"
            frame.border_subtitle = "esc closes"
            yield OptionList(id="messages-list", compact=True)
            yield Static("enter opens · of this prompt: x expands a paste, d removes", id="messages-keys", markup=False)

    def on_mount(self) -> None:
        """The lines need the theme's styles."""
        aside = self.get_component_rich_style("attachments--aside", partial=True)
        options = self.query_one(OptionList)
        rows = [("this prompt", one) for one in self._unsent]
        rows += [(f"message {number}", one) for number, one in self._sent]
        for where, one in rows:
            line = Text.assemble(
                (f"{where:<13}", aside), escape_controls(label(one)), no_wrap=True, overflow="ellipsis"
            )
            options.add_option(Option(line))
        options.highlighted = 0
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        event.stop()
        self.action_give(AttachmentAction.OPEN)

    def action_give(self, action: str) -> None:
        """Do this with the highlighted one; what was sent stays as it is."""
        place = self.query_one(OptionList).highlighted
        if place is not None and (action == AttachmentAction.OPEN or place < len(self._unsent)):
            self.dismiss((AttachmentAction(action), place))


class AttachmentScreen(ModalScreen[None]):
    """The text of one attachment, to be read and copied."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "close", key_display="esc")]

    def __init__(self, attachment: Attachment) -> None:
        super().__init__()
        self._attachment = attachment

    def compose(self) -> ComposeResult:
        """A text area in a frame."""
        with Vertical(id="attachment") as frame:
            frame.border_title = escape_controls(label(self._attachment)).replace("[", "\\[")
            frame.border_subtitle = "esc closes"
            text = escape_controls(self._attachment.text)
            yield TextArea(text, read_only=True, soft_wrap=False, show_line_numbers=True, compact=True)
