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

from specchat.app.ui.slash import COMMANDS
from specchat.app.ui.widgets.figures import FATES
from specchat.app.ui.widgets.token_lines import FOLD_MARK
from specchat.app.ui.widgets.transcript_styles import TOKEN_CLASSES

Row = tuple[str | Text, str]
Section = tuple[str, Iterable[Row]]
"""A title and its rows."""

CHAT_KEYS: tuple[Row, ...] = (
    ("enter", "send the prompt"),
    ("^j  shift+enter", "begin another line"),
    ("↑ ↓", "earlier and later prompts, of all chats"),
    ("esc", "stop the reply; its text is kept"),
    ("^n", "new chat"),
    ("^e", "messages: edit, another reply, continue, fork the chat, ‹ other versions ›"),
    ("^k", "search all chats"),
    ("@", "a path: the text file is sent along; tab completes; long pastes are kept aside too"),
    ("alt+a", "what is attached: open, expand, remove"),
    ("alt+c", "how full the context is, and what happens then"),
    ("alt+e", "the prompt in your own editor (VISUAL, EDITOR)"),
    ("^o  f9", "controls: γ, drafter, sampling, presets"),
    ("/", "commands; tab completes; // sends a slash"),
    ("tab", "in an empty chat: prompts that show speculation; /tour explains it"),
    ("^y  f11", "side by side: one prompt with and without drafts"),
    ("^b  f2", "chats; there: enter opens, r renames, p pins, d deletes, u undoes"),
)
REPLAY_KEYS: tuple[Row, ...] = (
    ("space", "pause, and go on"),
    ("← →", "back and forward in time; a click on the line too"),
    (",  .", "a round back; the next part of a round"),
    ("x", "the next rejection"),
    ("+ −", "faster, slower"),
    ("r", "play again from the start"),
)
LOOKING_KEYS: tuple[Row, ...] = (
    ("f6  i", "look at tokens, as a click on one does; again: stop"),
    ("← → ↑ ↓", "there: token by token, line by line; ^← ^→ round by round"),
    ("enter", "there: put another token in its place, and go on from it"),
    ("^l", "rounds on a line of time; there: ← → ↑ ↓, z zooms"),
    ("f10  p", "pause between rounds, and go on"),
    ("f7  n", "the next part of a round: drafted, judged, complete"),
    ("^f  f", "one round per line, as in Figure 1 of the paper"),
    ("f12  d", "what each figure means, as a click on the panel does"),
)
KEYS: tuple[Row, ...] = (
    ("^g  f3", "speculation panel"),
    ("^r  f4", "rejected drafts of a finished reply: ┊, in place, or hidden; a click on ┊ unfolds one"),
    ("^t  f5", "finished replies as Markdown, or token by token"),
    ("page up, down", "scroll; at its end the view follows the reply again"),
    ("f8", "copy the reply, a code block, or the chat"),
    ("^c", "copy what is selected, by mouse or (tab) shift and arrows"),
    ("^s", "save the screen as an SVG picture"),
    ("^p", "all commands, themes among them"),
    ("f1  ?", "this help"),
    ("^q", "quit"),
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
    return HelpPage(REPLAY_KEYS + KEYS, ("looking closely", LOOKING_KEYS))


class HelpScreen(ModalScreen[None]):
    """Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {"help--key", "help--title"}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,question_mark,q", "dismiss", "close", key_display="esc"),
    ]

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
                table.add_row(name, meaning)
            table.add_row("", "")
        return table

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)
