"""The keys of what has the focus, with the ids under which they can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.app.ui.keys import key_names, named


@dataclass(frozen=True, slots=True)
class ActiveKeys:
    """The bindings that would do something now, of one widget, of the screen or of the app."""

    of: str
    bindings: tuple[Binding, ...]


def active_keys(app: App[Any]) -> list[ActiveKeys]:
    """What each key would do now, the innermost place first; keys without an id are Textual's own."""
    found: dict[str, dict[str, Binding]] = {}
    for active in app.screen.active_bindings.values():
        binding = active.binding
        if active.enabled and binding.id is not None:
            found.setdefault(binding.id.partition(".")[0], {}).setdefault(binding.id, binding)
    return [ActiveKeys(group, tuple(bindings.values())) for group, bindings in found.items()]


class KeysScreen(ModalScreen[None]):
    """A table that closes with escape."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--key", "help--title", "help--id"}
    BINDINGS: ClassVar[list[BindingType]] = named(
        "keys",
        Binding("escape,question_mark,q", "dismiss", "close", key_display="esc"),
    )

    def __init__(self, groups: Sequence[ActiveKeys]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """One scrolled table."""
        with VerticalScroll(id="help", classes="keys") as frame:
            frame.border_title = "keys that work here"
            frame.border_subtitle = "change one: settings.toml, table keys · esc closes"
            yield Static(id="help-keys", classes="help-part")

    def on_mount(self) -> None:
        """The text needs the theme's styles."""
        key, title, quiet = (self.get_component_rich_style(f"help--{n}", partial=True) for n in ("key", "title", "id"))
        table = Table.grid(padding=(0, 2))
        table.add_column(style=key, no_wrap=True)
        table.add_column()
        table.add_column(style=quiet, no_wrap=True)
        for group in self._groups:
            table.add_row(Text(group.of, title), "", "")
            for binding in group.bindings:
                assert binding.id is not None
                table.add_row(key_names(self.app, binding.id), binding.description.lower(), binding.id)
            table.add_row("", "", "")
        self.query_one("#help-keys", Static).update(table)
        self.query_one("#help").focus()
