"""Help screens: keys, commands and fates; the meaning of each figure; the keys of the focused widget."""

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from specchat.app.ui.action_table import ACTIONS, ANYWHERE, CHAT, DETAILS, KEYS, REPLAY, SLASH_COMMANDS
from specchat.app.ui.keys import BINDINGS, key_names, registered
from specchat.app.ui.rendering.figures import FATES, Figure, definitions
from specchat.app.ui.rendering.styles import TOKEN_CLASSES
from specchat.app.ui.rendering.token_lines import FOLD_MARK
from specchat.app.ui.screens.dialogs import Dialog, framed

THEORY_KEYS = registered("theory", Binding("escape,h,q", "dismiss", "close", key_display="esc"))
"""Defined here because the theory screen and its plotting library are imported late."""
LABEL = 17
"""Widest label of a figure; longer ones are wrapped, so that the definitions keep their room."""
HELP = Path(__file__).parent.parent / "rendering" / "help.toml"
Row = tuple[str | Text, str]
"""Keys, the id of a key binding or a command, and what it does."""
Section = tuple[str, Iterable[Row]]
"""A title and its rows."""


@cache
def _rows(*names: str) -> list[Row]:
    """The rows of `help.toml` with these names, one after the other."""
    tables = tomllib.loads(HELP.read_text(encoding="utf-8"))
    return [(keys, does) for name in names for keys, does in tables[name]]


def _action_rows(section: str, *, replaying: bool) -> list[Row]:
    """Actions of the table that have keys and belong to a section."""
    places = ANYWHERE, REPLAY if replaying else CHAT
    listed = (a for a in ACTIONS.values() if a.about and (a.keys or a.priority) and a.help == section)
    return [(f"chat.{action.name}", action.about) for action in listed if action.place in places]


class TableScreen(Dialog[None]):
    """Tables in a scrolling frame, in two columns where there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"help--{p}" for p in ("key", "title", "id", "picture", "definition")}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012

    def __init__(self, title: str, subtitle: str = "esc closes", second: str = "help-figures") -> None:
        super().__init__(classes="dialog")
        self._frame = framed(VerticalScroll(id="help"), title, subtitle)
        self._ids = ("help-keys", second) if second else ("help-keys",)

    def compose(self) -> ComposeResult:
        """The frame."""
        with self._frame:
            for name in self._ids:
                yield Static(id=name, classes="help-part")

    def on_mount(self) -> None:
        """Fill the tables."""
        self._fill()
        self._frame.focus()

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        if self._frame.is_mounted:
            self._fill()

    def _fill(self) -> None:
        for name, content in zip(self._ids, self.parts(), strict=True):
            self.query_one(f"#{name}", Static).update(content)

    def parts(self) -> tuple[RenderableType, ...]:
        """The content of each column."""
        raise NotImplementedError

    def style_of(self, name: str) -> Style:
        """A style from the style sheet."""
        return self.get_component_rich_style(name, partial=True)

    def table(self, columns: int = 2, padding: tuple[int, ...] = (0, 2)) -> Table:
        """An empty table whose first column has keys."""
        table = Table.grid(padding=padding)  # type: ignore[arg-type]
        table.add_column(style=self.style_of("help--key"), no_wrap=True)
        table.add_column()
        if columns == 3:
            table.add_column(style=self.style_of("help--id"), no_wrap=True)
        return table


class HelpScreen(TableScreen):
    """Keys, fates and commands. Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES
    BINDINGS = registered("help", Binding("escape,f1,question_mark,q", "dismiss", "close", key_display="esc"))

    def __init__(self, keys: Iterable[Row], second: Section, commands: Iterable[Row] = ()) -> None:
        super().__init__("help")
        self._keys, self._second, self._commands = keys, second, list(commands)

    def parts(self) -> tuple[RenderableType, ...]:
        """Keys; and next to them (on a narrow screen below) the other sections."""
        fates: list[Row] = [(Text(f.value, self.style_of(f"token--{f.value}")), means) for f, means in FATES.items()]
        fates.append((Text(FOLD_MARK), "rejected and discarded tokens of a finished reply, folded"))
        commands = [self._sections(("commands", self._commands))] if self._commands else []
        second = Group(self._sections(self._second, ("tokens", fates)), *commands)
        return self._sections(("keys", self._keys)), second

    def _sections(self, *sections: Section) -> Table:
        table = self.table()
        for title, rows in sections:
            table.add_row(Text(title, self.style_of("help--title")), "")
            for name, meaning in rows:
                shown = key_names(self.app, name) if isinstance(name, str) and name in BINDINGS else name
                table.add_row(shown, meaning)
            table.add_row("", "")
        return table


def chat_help(*, replaying: bool) -> HelpScreen:
    """The help of the chat, or of a replay."""
    looking = _action_rows(DETAILS, replaying=replaying)
    keys = _action_rows(KEYS, replaying=replaying)
    if replaying:
        keys = [*_rows("replay"), *keys, *_rows("common", "documentation")]
        return HelpScreen(keys, (DETAILS, [*_rows("move"), *looking]))
    commands = [(f"/{action.slash}", action.about) for action in SLASH_COMMANDS]
    keys = [*_rows("chat"), *keys, *_rows("common", "documentation")]
    return HelpScreen(keys, (DETAILS, [*_rows("move", "fork"), *looking]), commands)


def side_help() -> HelpScreen:
    """The help of the side-by-side screen."""
    return HelpScreen(_rows("side"), ("figures", [(one.label, one.definition) for one in definitions("side_by_side")]))


class DefinitionsScreen(TableScreen):
    """The meaning of each figure: a sentence, a picture, the definition."""

    BINDINGS = registered(
        "figures",
        Binding("escape,d,q", "dismiss", "close", key_display="esc"),
        Binding("h", "app.run('theory')", "theory"),
    )

    def __init__(self) -> None:
        super().__init__("figures", "h theory · esc closes")

    def parts(self) -> tuple[RenderableType, ...]:
        """Two columns."""
        figures = definitions("figures")
        half = len(figures) // 2
        return self._column(figures[:half]), self._column(figures[half:])

    def _column(self, figures: list[Figure]) -> Table:
        table = self.table(padding=(0, 2, 1, 0))
        table.columns[0].no_wrap, table.columns[0].max_width = False, LABEL
        for figure in figures:
            sentence, picture = figure.sentence, figure.picture
            about = Group(
                Text(sentence, self.style_of("help--title")),
                Text(picture, self.style_of("help--picture"), no_wrap=True, overflow="crop"),
                Text(figure.definition, self.style_of("help--definition")),
            )
            table.add_row(figure.label, about)
        return table


class KeysScreen(TableScreen):
    """The keys that work in the focused widget, its screen and the app, with the ids to change them by."""

    HORIZONTAL_BREAKPOINTS = []  # noqa: RUF012
    BINDINGS = registered("keys", Binding("escape,question_mark,q", "dismiss", "close", key_display="esc"))

    def __init__(self) -> None:
        super().__init__("keys that work here", "change one: settings.toml, table keys · esc closes", second="")
        self._frame.add_class("keys")
        self._groups: dict[str, dict[str, Binding]] = {}
        for active in self.app.screen.active_bindings.values():  # of the screen that this one covers
            binding = active.binding
            if active.enabled and binding.id is not None:  # those without an id are Textual's own
                self._groups.setdefault(binding.id.partition(".")[0], {}).setdefault(binding.id, binding)

    def parts(self) -> tuple[RenderableType, ...]:
        """One table, the innermost widget first."""
        table = self.table(columns=3)
        for group, bindings in self._groups.items():
            table.add_row(Text(group, self.style_of("help--title")), "", "")
            for name, binding in bindings.items():
                table.add_row(key_names(self.app, name), binding.description.lower(), name)
            table.add_row("", "", "")
        table.add_row(*_rows("documentation")[0], "")
        return (table,)
