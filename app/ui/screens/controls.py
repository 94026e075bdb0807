"""The panel of controls at the right of the chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input

from specchat.app.settings.controls import Control
from specchat.app.settings.settings import Settings
from specchat.app.ui.keys import named
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.control_list import ControlList
from specchat.engine import Sampling


class Controlled(Protocol):
    """What the screen needs of `actions.settings.SettingsActions`; the methods say why a change is invalid."""

    @property
    def settings(self) -> Settings | None:
        """The settings; None until the app is ready."""

    @property
    def own(self) -> Sampling:
        """The model's own sampling settings."""

    @property
    def controls(self) -> Sequence[Control]:
        """Available controls."""

    @property
    def presets(self) -> list[str]:
        """The names of the saved presets."""

    def change(self, control: Control, text: str) -> bool:
        """Set a control to a typed value; returns whether it is valid."""

    def change_by(self, control: Control, by: int) -> None:
        """Set a control to a neighbouring value."""

    def use_preset(self, name: str) -> bool:
        """Set all controls as saved; returns whether the preset exists."""

    def save_preset(self, name: str) -> bool:
        """Save all controls as a preset; returns whether that succeeded."""


class ControlsScreen(Dialog[None]):
    """A list of controls and presets, and a field for a value or a name."""

    BINDINGS = named(
        "controls",
        Binding("escape", "back", "close", key_display="esc"),
        Binding("ctrl+o,f9", "dismiss", "close", show=False),
    )

    def __init__(self, actions: Controlled) -> None:
        super().__init__()
        self._actions = actions
        self._list = ControlList(id="control-list")
        self._field = Input(compact=True, id="control-field", select_on_focus=True)
        self._typed: Control | None = None
        """The control whose value is typed; None for the name of a preset."""

    def compose(self) -> ComposeResult:
        """One frame, as high as the terminal allows."""
        with framed(Vertical(id="controls"), "controls", "esc closes"):
            yield self._list
            yield self._field
            yield NoticeLine()

    def on_mount(self) -> None:
        """Hide the field."""
        self._field.display = False
        self._show()
        self._list.focus()

    def on_control_list_stepped(self, event: ControlList.Stepped) -> None:
        """The next or previous value, by key or mouse."""
        self._actions.change_by(event.entry, event.by)
        self._show()

    def on_control_list_typing_requested(self, event: ControlList.TypingRequested) -> None:
        """Type a value, or the name of a preset; a form has its own screen."""
        if event.entry is not None and event.entry.form:
            self.dismiss()
            self.app.call_later(self.app.run_action, f"app.run('{event.entry.command}')")
            return
        self._typed = event.entry
        settings = self._actions.settings
        if event.entry is not None and settings is not None:
            present = getattr(settings, event.entry.name)
            self._field.value = "" if present is None else str(present)
            self._field.placeholder = event.entry.takes
        else:
            self._field.value, self._field.placeholder = "", "name of the preset"
        self._field.display = True
        self._field.focus()

    def on_control_list_preset_requested(self, event: ControlList.PresetRequested) -> None:
        """Use a preset."""
        self._actions.use_preset(event.name)
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Use the typed text; an invalid one stays in the field."""
        text = event.value.strip()
        if not text:
            done = True
        elif self._typed is None:
            done = self._actions.save_preset(text)
        else:
            done = self._actions.change(self._typed, text)
        if done:
            self.action_back()

    def action_back(self) -> None:
        """Close the field, or the screen."""
        if not self._field.display:
            self.dismiss()
            return
        self._field.display = False
        self._show()
        self._list.focus()

    def _show(self) -> None:
        if self._actions.settings is not None:
            self._list.show(self._actions.settings, self._actions.own, self._actions.controls, self._actions.presets)
