"""Keys, fates and the definition of every figure, on one screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.widgets.figures import DEFINITIONS, FATES
from app.widgets.look import TOKEN_CLASSES

Row = tuple[str | Text, str]

CHAT_KEYS: tuple[Row, ...] = (
    ("enter", "send the prompt"),
    ("^j  shift+enter", "begin another line"),
    ("↑ ↓", "earlier and later prompts"),
    ("esc", "stop the reply; its text is kept"),
    ("^n", "new chat"),
    ("^y  f11", "side by side: one prompt with and without drafts"),
    ("^b  f2", "chats; there: enter opens, r renames, d deletes, u undoes"),
)
REPLAY_KEYS: tuple[Row, ...] = (
    ("space", "pause, and go on"),
    ("+ −", "faster, slower"),
    ("r", "play again from the start"),
)
KEYS: tuple[Row, ...] = (
    ("^g  f3", "speculation panel"),
    ("^r  f4", "hide or show rejected and discarded tokens"),
    ("^t  f5", "finished replies as Markdown, or token by token"),
    ("page up, down", "scroll; at its end the view follows the reply again"),
    ("^s", "save the screen as an SVG picture"),
    ("^p", "all commands, themes among them"),
    ("f1  ?", "this help"),
    ("^q", "quit"),
)


class HelpScreen(ModalScreen[None]):
    """Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | {"help--key", "help--title"}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,question_mark,q", "dismiss", "close", key_display="esc"),
    ]

    def __init__(self, *, replaying: bool) -> None:
        super().__init__()
        self._keys = (REPLAY_KEYS if replaying else CHAT_KEYS) + KEYS
        self._figures: Iterable[Row] = DEFINITIONS

    def compose(self) -> ComposeResult:
        """Figures beside keys and fates; on a narrow screen below them."""
        with VerticalScroll(id="help") as frame:
            frame.border_title = "help"
            frame.border_subtitle = "esc closes"
            yield Static(id="help-keys", classes="help-part")
            yield Static(id="help-figures", classes="help-part")

    def on_mount(self) -> None:
        """The text needs the theme's styles."""
        fates = [(Text(fate.value, self._style(f"token--{fate.value}")), meaning) for fate, meaning in FATES.items()]
        keys = self._table(("keys", self._keys), ("tokens", fates))
        self.query_one("#help-keys", Static).update(keys)
        self.query_one("#help-figures", Static).update(self._table(("figures", self._figures)))
        self.query_one("#help").focus()

    def _table(self, *sections: tuple[str, Iterable[Row]]) -> Table:
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
