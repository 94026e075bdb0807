"""The keys at the bottom: keys of the focused widget, and at the right end the keys that always work."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.binding import ActiveBinding
from textual.events import MouseDown, MouseMove
from textual.screen import Screen
from textual.strip import Strip

from specchat.app.ui.rendering.styles import StyledWidget

ESCAPE = "escape"
ALWAYS = ("app.run('keys')", "quit")
"""Actions whose keys are at the right end."""


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key, as it is shown, and what it does."""

    key: str
    name: str
    description: str
    action: str
    enabled: bool

    @property
    def cells(self) -> int:
        """Cells of its name and description, including the spaces after them."""
        return cell_len(f"{self.name} {self.description} ")


class KeyBar(StyledWidget):
    """The keys of the focused widget, the screen and the app that fit on one line; a click presses one.

    Textual's footer is a widget for each key: to make them anew costs as much as thirty frames of a reply, whenever a
    reply begins or ends.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"key-bar--{part}" for part in ("key", "description", "pointed", "off")}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.keys: list[ShownKey] = []
        """Those there is room for, from left to right."""
        self._lefts: list[int] = []
        """Their first columns."""
        self._all: list[ShownKey] = []
        self._pointed: ShownKey | None = None
        """The key below the mouse."""

    def on_mount(self) -> None:
        """Follow the screen, which says when other keys work."""
        self.screen.bindings_updated_signal.subscribe(self, self._take_keys)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Show which key a click would press."""
        self._point(self._key_at(event.x))

    def on_leave(self) -> None:
        """None."""
        self._point(None)

    def on_mouse_down(self, event: MouseDown) -> None:
        """Press the key."""
        key = self._key_at(event.x)
        if key is not None and key.enabled:
            self.app.simulate_key(key.key)
        elif key is not None:
            self.app.bell()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002 there is one
        """The keys side by side."""
        segments, column = [], 0
        for key, left in zip(self.keys, self._lefts, strict=True):
            segments += [Segment(" " * (left - column), self.rich_style.background_style), *self._segments(key)]
            column = left + key.cells - 1
        return Strip(segments)

    def _segments(self, key: ShownKey) -> tuple[Segment, Segment]:
        name, description = (self.get_component_rich_style(f"key-bar--{part}") for part in ("key", "description"))
        if key == self._pointed:
            pointed = self.get_component_rich_style("key-bar--pointed")
            name, description = name + pointed, pointed
        elif not key.enabled:
            off = self.style_of("key-bar--off")
            name, description = name + off, description + off
        return Segment(key.name, name), Segment(f" {key.description}", description)

    def _take_keys(self, screen: Screen[Any]) -> None:
        """Show the keys that work now."""
        if not screen.app.app_focus:
            return
        found: dict[str, ShownKey] = {}
        for active in sorted(screen.active_bindings.values(), key=_rank):
            binding = active.binding
            if binding.show and binding.action not in found:
                name = self.app.get_key_display(binding)
                found[binding.action] = ShownKey(binding.key, name, binding.description, binding.action, active.enabled)
        if (keys := list(found.values())) != self._all:
            self._all = keys
            self._fit()

    def _fit(self) -> None:
        """Show escape, the keys that always work, and the first others that there is room for."""
        width = self.content_size.width + 1  # no space after the last key
        room, shown = width, []
        for key in sorted(self._all, key=lambda key: key.key != ESCAPE and (1 if key.action in ALWAYS else 2)):
            room -= key.cells
            if room < 0:
                break
            shown.append(key)
        self.keys = sorted(shown, key=lambda key: (key.action in ALWAYS, self._all.index(key)))
        self._lefts, column = [], 0
        right = width - sum(key.cells for key in self.keys if key.action in ALWAYS)
        for key in self.keys:
            left = max(column, right) if key.action in ALWAYS else column
            self._lefts.append(left)
            column = left + key.cells
        self.refresh()

    on_resize = _fit

    def _key_at(self, x: int) -> ShownKey | None:
        """The key in this column of the widget; none between two of them."""
        column = x - self.gutter.left
        places = zip(self.keys, self._lefts, strict=True)
        return next((key for key, left in places if left <= column < left + key.cells - 1), None)

    def _point(self, key: ShownKey | None) -> None:
        if key != self._pointed:
            self._pointed = key
            self.styles.pointer = "default" if key is None else "pointer"
            self.refresh()


def _rank(active: ActiveBinding) -> tuple[int, int]:
    """The innermost widget's keys come first, each widget's in the order of its table."""
    ids = [getattr(binding, "id", None) for binding in active.node.BINDINGS]
    own = active.binding.id
    return -len(list(active.node.ancestors)), ids.index(own) if own in ids else len(ids)
