"""What every figure on screen means, from the one table that their labels come from too."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.app.ui.keys import named
from specchat.app.ui.rendering.definitions import FIGURES, Figure

THEORY_KEYS = named("theory", Binding("escape,t,q", "dismiss", "close", key_display="esc"))
"""Here, because the theory and its plotting library are loaded late."""


class DefinitionsScreen(ModalScreen[None]):
    """Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--key", "help--title", "help--picture", "help--definition"}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = named(
        "figures",
        Binding("escape,f12,d,q", "dismiss", "close", key_display="esc"),
        Binding("t", "app.open('theory')", "theory"),
    )

    def compose(self) -> ComposeResult:
        """Two columns where there is room."""
        with VerticalScroll(id="help") as frame:
            frame.border_title = "figures"
            frame.border_subtitle = "t theory · esc closes"
            yield Static(id="help-keys", classes="help-part")
            yield Static(id="help-figures", classes="help-part")

    def on_mount(self) -> None:
        """The text needs the theme's styles."""
        half = len(FIGURES) // 2
        self.query_one("#help-keys", Static).update(self._table(FIGURES[:half]))
        self.query_one("#help-figures", Static).update(self._table(FIGURES[half:]))
        self.query_one("#help").focus()

    def _table(self, figures: tuple[Figure, ...]) -> Table:
        table = Table.grid(padding=(0, 2, 1, 0))
        table.add_column(style=self._style("help--key"), no_wrap=True)
        table.add_column()
        for figure in figures:
            table.add_row(figure.label, self._about(figure))
        return table

    def _about(self, figure: Figure) -> Group:
        """Plain words, a picture, then the definition."""
        sentence, picture = figure.sentence, figure.picture
        return Group(
            Text(sentence, self._style("help--title")),
            Text(picture, self._style("help--picture"), no_wrap=True, overflow="crop"),
            Text(figure.definition, self._style("help--definition")),
        )

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(part, partial=True)
