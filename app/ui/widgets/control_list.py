"""List of the controls with their values, and of the presets; arrow keys and mouse change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.widget import Widget

from specchat.app.settings.controls import Control
from specchat.app.settings.settings import Settings
from specchat.app.ui.keys import named
from specchat.app.ui.widgets.styled import StyledWidget
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


class ControlList(StyledWidget, can_focus=True):
    """One line per control, below a heading that tells when a change takes effect."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "control-list--heading", "control-list--label", "control-list--value", "control-list--changed",
        "control-list--arrow", "control-list--about",
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = named(
        "control-list",
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("left,h,minus", "step(-1)", "less"),
        Binding("right,l,plus,equals_sign", "step(1)", "more"),
        Binding("enter", "enter", "type a value"),
        Binding("s", "save", "save as preset"),
    )

    @dataclass
    class TypingRequested(Message):
        """Ask for a value; without a control, for a preset's name."""

        entry: Control | None

    def __init__(self, actions: Controlled, **options: Any) -> None:
        super().__init__(**options)
        self._actions = actions
        self._settings, self._own = Settings(), Sampling()
        self._entries: list[Entry] = [None]
        self._at = 0

    def show(self) -> None:
        """Show the present values."""
        self._settings, self._own = self._actions.settings, self._actions.own
        self._entries = [*self._actions.controls, *self._actions.presets, None]
        self._at = min(self._at, len(self._entries) - 1)
        self.refresh(layout=True)

    def render(self) -> Text:
        """Every line."""
        return Text("\n", no_wrap=True, overflow="crop").join(line for line, _ in self._lines())

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
        self.post_message(self.TypingRequested(None))

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
            self.post_message(self.TypingRequested(entry))

    def _lines(self) -> list[tuple[Text, int | None]]:
        """Each line, and the place of its entry if it has one."""
        lines: list[tuple[Text, int | None]] = []
        heading = ""
        for place, entry in enumerate(self._entries):
            wanted = _heading(entry)
            if wanted != heading:
                if heading:
                    lines.append((Text(""), None))
                lines.append((Text(wanted, self.style_of("control-list--heading")), None))
                heading = wanted
            lines.append((self._line(entry, chosen=place == self._at), place))
        entry = self._entries[self._at]
        lines += [(Text(""), None), (Text(_about(entry), self.style_of("control-list--about")), None)]
        return lines

    def _line(self, entry: Entry, *, chosen: bool) -> Text:
        mark = Text("▸ " if chosen else "  ", self.style_of("control-list--arrow"))
        width = max(self.content_size.width, LABEL + 12)
        if not isinstance(entry, Control):
            line = Text.assemble(
                mark, (entry or SAVE, self.style_of("control-list--value" if entry else "control-list--label"))
            )
        else:
            changed = getattr(self._settings, entry.name) != getattr(Settings(), entry.name)
            said = entry.text(self._settings, self._own)
            value = Text(said, self.style_of("control-list--changed" if changed else "control-list--value"))
            value.truncate(width - LABEL - 6, overflow="ellipsis")
            if chosen and entry.steps:
                arrow = self.style_of("control-list--arrow")
                value = Text.assemble(("◂ ", arrow), value, (" ▸", arrow))
            line = Text.assemble(mark, (entry.label.ljust(LABEL), self.style_of("control-list--label")), value)
        line.pad_right(max(width - line.cell_len, 0))
        if chosen:
            line.stylize(Style(bold=True))
        return line


def _heading(entry: Entry) -> str:
    """When a control takes effect; presets have a heading of their own."""
    if not isinstance(entry, Control):
        return PRESETS
    return IN_EFFECT[entry.applies]


def _about(entry: Entry) -> str:
    if isinstance(entry, Control):
        return entry.means
    return f"set everything as {entry} has it" if entry else "keep all values above under a name"
