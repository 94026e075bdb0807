"""The messages of the chat as a list: edit, ask again, continue, fork, and go from version to version."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.turn import Turn
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import named
from specchat.app.ui.widgets.chat_list import KeyList

KEYS = (
    "enter goes there · e edit · r again · c continue · f fork",
    "← → other replies · shift ← → other versions",
)
PADDING = 4
"""Cells beside each line."""


class MessageAction(StrEnum):
    """What can be done with a message."""

    GO = "go"
    EDIT = "edit"
    REGENERATE = "regenerate"
    CONTINUE = "continue"
    FORK = "fork"


class MessagesScreen(ModalScreen[tuple[MessageAction, Turn] | None]):
    """Gives what to do with which turn, or None. Other versions are shown at once."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"messages--number", "messages--versions"}
    BINDINGS: ClassVar[list[BindingType]] = named(
        "messages",
        Binding("escape,ctrl+e", "dismiss", "close", key_display="esc"),
        Binding("e", "give('edit')", "edit"),
        Binding("r", "give('regenerate')", "another reply"),
        Binding("c", "give('continue')", "continue"),
        Binding("f", "give('fork')", "fork"),
        Binding("left", "reply(-1)", "reply before", priority=True),
        Binding("right", "reply(1)", "reply after", priority=True),
        Binding("shift+left", "version(-1)", "version before", priority=True),
        Binding("shift+right", "version(1)", "version after", priority=True),
    )

    def __init__(
        self,
        conversation: Conversation,
        show_reply: Callable[[Turn, int], None],
        show_version: Callable[[Turn, int], None],
    ) -> None:
        """Make it.

        Args:
            conversation: Whose path is listed.
            show_reply: Goes on with the reply that is so many places further on.
            show_version: The same for the versions of a prompt.
        """
        super().__init__()
        self._conversation = conversation
        self._show_reply, self._show_version = show_reply, show_version

    def compose(self) -> ComposeResult:
        """The list, and its keys below it."""
        with Vertical(id="messages") as frame:
            frame.border_title = "messages"
            frame.border_subtitle = "esc closes"
            yield KeyList(id="messages-list", compact=True)
            yield Static("\n".join(KEYS), id="messages-keys", markup=False)

    def on_mount(self) -> None:
        """The last message is the one that is meant most often."""
        self._fill(len(self._conversation.turns) - 1)
        self.query_one(OptionList).focus()

    def on_resize(self, event: Resize) -> None:  # noqa: ARG002 the handler's signature
        """Prompts are cut to the width."""
        self._fill(self.query_one(OptionList).highlighted or 0)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        event.stop()
        self.action_give(MessageAction.GO)

    def action_give(self, action: str) -> None:
        """Do this with the highlighted message."""
        if (turn := self._turn) is not None:
            self.dismiss((MessageAction(action), turn))

    def action_reply(self, step: int) -> None:
        """Go on with another reply."""
        if (turn := self._turn) is not None:
            place = self._conversation.turns.index(turn)
            self._show_reply(turn, step)
            self._fill(place)

    def action_version(self, step: int) -> None:
        """Go on with another version of the prompt."""
        if (turn := self._turn) is not None:
            place = self._conversation.turns.index(turn)
            self._show_version(turn, step)
            self._fill(place)

    @property
    def _turn(self) -> Turn | None:
        place = self.query_one(OptionList).highlighted
        return None if place is None else self._conversation.turns[place]

    def _fill(self, place: int) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        width = (options.scrollable_content_region.width or 70) - PADDING
        number_style = self.get_component_rich_style("messages--number", partial=True)
        versions_style = self.get_component_rich_style("messages--versions", partial=True)
        for number, turn in enumerate(self._conversation.turns, start=1):
            versions = "  ".join(version_marks(turn))
            prompt = Text(" ".join(escape_controls(turn.prompt).split()), no_wrap=True)
            room = max(width - cell_len(versions) - 5, 8)
            prompt.truncate(room, overflow="ellipsis", pad=True)
            options.add_option(
                Option(Text.assemble((f"{number:>3} ", number_style), prompt, " ", (versions, versions_style)))
            )
        options.highlighted = min(place, len(self._conversation.turns) - 1) if self._conversation.turns else None


def version_marks(turn: Turn) -> list[str]:
    """Which of several versions are shown, of the prompt and of the reply; nothing where there is one."""
    marks = []
    if len(turn.versions) > 1:
        marks.append(f"prompt ‹ {turn.version} / {len(turn.versions)} ›")
    if len(turn.replies) > 1:
        marks.append(f"reply ‹ {turn.place} / {len(turn.replies)} ›")
    return marks
