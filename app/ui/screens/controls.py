"""The panel of controls at the right of the chat."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input

from specchat.app.settings.controls import Control
from specchat.app.ui.keys import named
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.control_list import Controlled, ControlList


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
        self._list = ControlList(actions, id="control-list")
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
        self._list.show()
        self._list.focus()

    def on_control_list_typing_requested(self, event: ControlList.TypingRequested) -> None:
        """Type a value, or the name of a preset; a form has its own screen."""
        if event.entry is not None and event.entry.form:
            self.dismiss()
            self.app.call_later(self.app.run_action, f"app.run('{event.entry.command}')")
            return
        self._typed = event.entry
        if event.entry is not None:
            present = getattr(self._actions.settings, event.entry.name)
            self._field.value = "" if present is None else str(present)
            self._field.placeholder = event.entry.takes
        else:
            self._field.value, self._field.placeholder = "", "name of the preset"
        self._field.display = True
        self._field.focus()

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
        self._list.show()
        self._list.focus()
