"""What every figure on screen means, from the one table that their labels come from too."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.app.ui.widgets.definitions import FIGURES, Figure


class DefinitionsScreen(ModalScreen[None]):
    """Closes with the key that opened it, or escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--key", "help--title"}
    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (120, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f12,d,q", "dismiss", "close", key_display="esc"),
        Binding("t", "app.theory", "theory"),
    ]

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
        table = Table.grid(padding=(0, 2))
        table.add_column(style=self.get_component_rich_style("help--key", partial=True), no_wrap=True)
        table.add_column()
        for figure in figures:
            table.add_row(figure.label, Text(figure.definition))
        return table
