"""The panel of controls at the right of the chat: a list of the controls with their values, and of the presets."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Input

from specchat.app.settings.controls import Control
from specchat.app.settings.settings import Settings
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import Dialog, framed
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.engine import Applies, Sampling

LABEL = 14
IN_EFFECT = {
    Applies.SCREEN: "at once",
    Applies.ROUND: "from the next round on",
    Applies.REQUEST: "from the next reply on",
    Applies.START: "reloads the models",
}
"""Headings of controls, by when a change takes effect."""
PRESETS = "presets"
SAVE = "save these as a preset …"

Entry = Control | str | None
"""A control, a preset, or the line that saves one."""


class Controlled(Protocol):
    """What the list and its screen need of `SettingsActions`; the methods say why a change is invalid."""

    @property
    def settings(self) -> Settings:
        """The settings."""

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


class ControlList(Widget, can_focus=True):
    """One line per control, below a heading that tells when a change takes effect."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = registered(
        "control-list",
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("left,h,minus", "step(-1)", "less"),
        Binding("right,l,plus,equals_sign", "step(1)", "more"),
        Binding("enter", "enter", "type a value"),
        Binding("s", "save", "save as preset"),
    )

    def __init__(self, actions: Controlled, ask: Callable[[Control | None], None], **options: Any) -> None:
        """List the controls; `ask` is called to have a value typed, or without a control, the name of a preset."""
        super().__init__(**options)
        self._actions, self._ask = actions, ask
        self._settings, self._own = Settings(), Sampling()
        self._entries: list[Entry] = [None]
        self._at = 0

    def show(self) -> None:
        """Show the present values."""
        self._settings, self._own = self._actions.settings, self._actions.own
        self._entries = [*self._actions.controls, *self._actions.presets, None]
        self._at = min(self._at, len(self._entries) - 1)
        self.refresh(layout=True)

    def render(self) -> Content:
        """Every line."""
        return Content("\n").join(line for line, _ in self._lines())

    def action_move(self, by: int) -> None:
        """To the next entry."""
        self._at = (self._at + by) % len(self._entries)
        line = next(y for y, (_, entry) in enumerate(self._lines()) if entry == self._at)
        if isinstance(self.parent, Widget):
            self.parent.scroll_to_region(Region(0, self.virtual_region.y + line, 1, 1), animate=False, force=True)
        self.refresh()

    def action_step(self, by: int) -> None:
        """Another value."""
        entry = self._entries[self._at]
        if isinstance(entry, Control) and entry.steps:
            self._actions.change_by(entry, by)
            self.show()

    def action_enter(self) -> None:
        """Type a value, or take the preset."""
        self._choose(self._entries[self._at])

    def action_save(self) -> None:
        """Save all values as a preset."""
        self._ask(None)

    def on_click(self, event: Click) -> None:
        """Step the value on an arrow; elsewhere select the entry, or act as enter on the selected one."""
        lines = self._lines()
        if not 0 <= event.y < len(lines) or (place := lines[event.y][1]) is None:
            return
        before, self._at = self._at, place
        entry, row = self._entries[place], lines[event.y][0].plain
        if isinstance(entry, Control):
            left, right = row.find("◂"), row.rfind("▸")
            if left >= 0 and abs(event.x - left) <= 1:
                self.action_step(-1)
            elif right >= 0 and abs(event.x - right) <= 1:
                self.action_step(1)
            elif before == place:
                self._choose(entry)
        else:
            self._choose(entry)
        self.refresh()

    def _choose(self, entry: Entry) -> None:
        if isinstance(entry, str):
            self._actions.use_preset(entry)
            self.show()
        else:
            self._ask(entry)

    def _lines(self) -> list[tuple[Content, int | None]]:
        """Each line, and the place of its entry if it has one."""
        lines: list[tuple[Content, int | None]] = []
        for heading, group in groupby(enumerate(self._entries), key=lambda placed: _heading(placed[1])):
            lines.append((Content.styled(heading, "$primary"), None))
            lines += [(self._line(entry, chosen=place == self._at), place) for place, entry in group]
            lines.append((Content(""), None))
        return [*lines, (Content.styled(_about(self._entries[self._at]), "italic $quiet"), None)]

    def _line(self, entry: Entry, *, chosen: bool) -> Content:
        width = max(self.content_size.width, LABEL + 12)
        if not isinstance(entry, Control):
            said = Content.styled(entry or SAVE, "$foreground" if entry else "$quiet")
        else:
            changed = getattr(self._settings, entry.name) != getattr(Settings(), entry.name)
            value = Content(entry.text(self._settings, self._own)).truncate(width - LABEL - 6, ellipsis=True)
            value = value.stylize("bold $fate-bonus" if changed else "$foreground")
            if chosen and entry.steps:
                value = Content.assemble(("◂ ", "$primary"), value, (" ▸", "$primary"))
            said = Content.assemble((entry.label.ljust(LABEL), "$quiet"), value)
        line = Content.assemble(("▸ " if chosen else "  ", "$primary"), said)
        line = line.pad_right(max(width - line.cell_length, 0))
        return line.stylize("bold") if chosen else line


def _heading(entry: Entry) -> str:
    """When a control takes effect; presets have a heading of their own."""
    if not isinstance(entry, Control):
        return PRESETS
    return IN_EFFECT[entry.applies]


def _about(entry: Entry) -> str:
    if isinstance(entry, Control):
        return entry.means
    return f"set everything as {entry} has it" if entry else "keep all values above under a name"


class ControlsScreen(Dialog[None]):
    """A list of controls and presets, and a field for a value or a name."""

    BINDINGS = registered(
        "controls",
        Binding("escape", "back", "close", key_display="esc"),
        Binding("ctrl+o,f9", "dismiss", "close", show=False),
    )

    def __init__(self, actions: Controlled) -> None:
        super().__init__()
        self._actions = actions
        self._list = ControlList(actions, self._ask, id="control-list")
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

    def _ask(self, control: Control | None) -> None:
        """Have a value typed, or the name of a preset; a form has its own screen."""
        if control is not None and control.form:
            self.dismiss()
            self.app.call_later(self.app.run_action, f"app.run('{control.command}')")
            return
        self._typed = control
        present = None if control is None else getattr(self._actions.settings, control.name)
        self._field.value = "" if present is None else str(present)
        self._field.placeholder = "name of the preset" if control is None else control.takes
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
