"""Forms: the system prompt of a chat, and the variables of a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.ui.keys import named
from specchat.app.ui.widgets.composer import WrappedArea


class SystemScreen(ModalScreen[str | None]):
    """Gives the new system prompt, or None."""

    BINDINGS: ClassVar[list[BindingType]] = named(
        "form",
        Binding("escape", "dismiss", "cancel", key_display="esc"),
        Binding("ctrl+s", "keep", "keep", key_display="^s", priority=True),
    )

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """A text area in a frame."""
        with Vertical(id="form") as frame:
            frame.border_title = "system prompt of this chat"
            frame.border_subtitle = "^s keeps it · esc cancels"
            yield WrappedArea(escape_controls(self._text), id="form-text", compact=True)

    def action_keep(self) -> None:
        """Use what is written."""
        self.dismiss(clean_prompt(self.query_one(WrappedArea).text).strip())


class TemplateScreen(ModalScreen[dict[str, str] | None]):
    """Gives a value for each variable, or None."""

    BINDINGS: ClassVar[list[BindingType]] = named("form", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str, names: Sequence[str]) -> None:
        super().__init__()
        self._title, self._names = title, names

    def compose(self) -> ComposeResult:
        """A line of input for each variable."""
        with VerticalScroll(id="form", can_focus=False) as frame:
            frame.border_title = self._title
            frame.border_subtitle = "enter goes on · esc cancels"
            for name in self._names:
                yield Label(name, markup=False)
                yield Input(id=f"variable-{name}", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """To the first one that is empty; when none is, that is all."""
        fields = list(self.query(Input))
        empty = next((field for field in fields if not field.value.strip()), None)
        if empty is None:
            self.dismiss({name: clean_prompt(f.value) for name, f in zip(self._names, fields, strict=True)})
        elif empty is event.input:
            self.query_one(
                "#form"
            ).border_subtitle = f"{empty.id.removeprefix('variable-') if empty.id else ''} is empty"
        else:
            empty.focus()
