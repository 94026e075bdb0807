"""Keys and fates on one screen. What each figure means: `app.ui.screens.definitions`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.app.ui.keys import key_names, named
from specchat.app.ui.rendering.figures import FATES
from specchat.app.ui.rendering.styles import TOKEN_CLASSES
from specchat.app.ui.rendering.token_lines import FOLD_MARK
from specchat.app.ui.slash import COMMANDS


class KeyOf(str):
    """The id of a binding, in the place of its keys: they may be changed."""

    __slots__ = ()


Row = tuple[str | Text, str]
Section = tuple[str, Iterable[Row]]
"""A title and its rows."""

CHAT_KEYS: tuple[Row, ...] = (
    (KeyOf("composer.send"), "send the prompt"),
    (KeyOf("composer.new-line"), "begin another line"),
    ("↑ ↓", "earlier and later prompts, of all chats"),
    (KeyOf("chat.stop"), "stop the reply; its text is kept"),
    (KeyOf("chat.new"), "new chat"),
    (KeyOf("chat.messages"), "messages: edit, another reply, continue, fork the chat, ‹ other versions ›"),
    (KeyOf("chat.search"), "search all chats"),
    (KeyOf("chat.models"), "models: target and draft, downloads, what fits; /model NAME"),
    ("@", "a path: the text file is sent along; tab completes; long pastes are kept aside too"),
    (KeyOf("chat.attachments"), "what is attached: open, expand, remove"),
    (KeyOf("chat.context"), "how full the context is, and what happens then"),
    (KeyOf("chat.editor"), "the prompt in your own editor (VISUAL, EDITOR)"),
    (KeyOf("chat.controls"), "controls: γ, drafter, sampling, presets"),
    ("/", "commands; tab completes; // sends a slash"),
    ("tab", "in an empty chat: prompts that show speculation; /tour explains it"),
    (KeyOf("chat.side-by-side"), "side by side: one prompt with and without drafts"),
    (KeyOf("chat.chats"), "chats; there: enter opens, r renames, p pins, d deletes, u undoes"),
)
REPLAY_KEYS: tuple[Row, ...] = (
    (KeyOf("chat.pause"), "pause, and go on"),
    ("← →", "back and forward in time; a click on the line too"),
    (",  .", "a round back; the next part of a round"),
    (KeyOf("chat.next-rejection"), "the next rejection"),
    ("+ −", "faster, slower"),
    (KeyOf("chat.again"), "play again from the start"),
)
FORK: Row = (KeyOf("transcript.fork-here"), "there: put another token in its place, and go on from it")
LOOKING_KEYS: tuple[Row, ...] = (
    (KeyOf("chat.inspect"), "look at tokens, as a click on one does; again: stop"),
    ("← → ↑ ↓", "there: token by token, line by line; ^← ^→ round by round"),
    FORK,
    (KeyOf("chat.rounds"), "rounds on a line of time; there: ← → ↑ ↓, z zooms"),
    (KeyOf("chat.pause"), "pause between rounds, and go on"),
    (KeyOf("chat.step"), "the next part of a round: drafted, judged, complete"),
    (KeyOf("chat.figure-1"), "one round per line, as in Figure 1 of the paper"),
    (KeyOf("chat.compare-drafts"), "which tokens of a finished reply drafter A has and B has not; /drafts A B"),
    (KeyOf("chat.figures"), "what each figure means, as a click on the panel does"),
)
KEYS: tuple[Row, ...] = (
    (KeyOf("chat.panel"), "speculation panel"),
    (KeyOf("chat.rejected"), "rejected drafts of a finished reply: ┊, in place, or hidden; a click on ┊ unfolds one"),
    (KeyOf("chat.markdown"), "replies as Markdown, also while they are written, or token by token"),
    (KeyOf("chat.thinking"), "show the thinking of replies, or fold it; a click on its line does the same"),
    ("alt+1 … 9", "copy that code block of the replies in sight; a click above it too"),
    (KeyOf("chat.open-a-link"), "open a link of the replies in sight; a click on it too"),
    (KeyOf("chat.jump"), "letters beside the messages in sight: type one to go there"),
    ("j k  g G", "down, up, first, last line, of a chat (tab goes there) or a list; ^d ^u half a page"),
    ("page up, down", "scroll; at its end the view follows the reply again"),
    (KeyOf("chat.copy"), "copy the reply, a code block, or the chat"),
    ("^c", "copy what is selected, by mouse or (tab) shift and arrows"),
    (KeyOf("chat.save-the-screen"), "save the screen as an SVG picture"),
    ("^p", "all commands, themes among them"),
    (KeyOf("chat.help"), "this help"),
    (KeyOf("chat.keys"), "the keys that work where you are, and the ids to change them by"),
    (KeyOf("app.quit"), "quit"),
)


@dataclass(frozen=True, slots=True)
class HelpPage:
    """What a help screen says, beside the fates of tokens."""

    keys: tuple[Row, ...]
    beside: Section
    """Stands above the fates."""
    commands: tuple[Row, ...] = ()


def chat_help() -> HelpPage:
    """The help of the chat."""
    commands = tuple((command.usage, command.means) for command in COMMANDS)
    return HelpPage(CHAT_KEYS + KEYS, ("looking closely", LOOKING_KEYS), commands)


def replay_help() -> HelpPage:
    """The help of a replay."""
    looking = tuple(line for line in LOOKING_KEYS if line is not FORK)
    return HelpPage(REPLAY_KEYS + KEYS, ("looking closely", looking))


class HelpScreen(ModalScreen[None]):
    """Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {"help--key", "help--title"}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = named(
        "help", Binding("escape,f1,question_mark,q", "dismiss", "close", key_display="esc")
    )

    def __init__(self, page: HelpPage) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        """Keys beside those that look closely and fates; on a narrow screen above them."""
        with VerticalScroll(id="help") as frame:
            frame.border_title = "help"
            frame.border_subtitle = "esc closes"
            yield Static(id="help-keys", classes="help-part")
            yield Static(id="help-figures", classes="help-part")

    def on_mount(self) -> None:
        """The text needs the theme's styles."""
        fates = [(Text(fate.value, self._style(f"token--{fate.value}")), meaning) for fate, meaning in FATES.items()]
        fates.append((Text(FOLD_MARK), "stands for rejected and discarded tokens of a finished reply"))
        self.query_one("#help-keys", Static).update(self._table(("keys", self._page.keys)))
        self.query_one("#help-figures", Static).update(self._beside(fates))
        self.query_one("#help").focus()

    def _beside(self, fates: Iterable[Row]) -> RenderableType:
        """The tables beside the keys."""
        commands = [self._table(("commands", self._page.commands))] if self._page.commands else []
        return Group(self._table(self._page.beside, ("tokens", fates)), *commands)

    def _table(self, *sections: Section) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style=self._style("help--key"), no_wrap=True)
        table.add_column()
        for title, rows in sections:
            table.add_row(Text(title, self._style("help--title")), "")
            for name, meaning in rows:
                table.add_row(key_names(self.app, name) if isinstance(name, KeyOf) else name, meaning)
            table.add_row("", "")
        return table

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)
