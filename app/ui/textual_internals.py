"""Private parts of Textual that the app uses, each with its reason and its measured benefit.

Benefits are processor time of the app as a share of one core, while one reply grows at 200 tokens/s with 30 frames/s
on two cores (`benchmarks.measure_interface`): 14 % with everything below, 30 % without. On a GPU the engine's Python
code loses that time; on a CPU fewer frames are drawn instead.

`show_as_text` keeps strings of users, files, models and servers from acting on the terminal or being read as markup.
`terminal_driver.py` needs the parser of keys and the marks around a frame, because Textual's driver ends with an
exception where input is invalid or the terminal goes; `keys.py` needs Textual's names of characters to check a keymap.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any

import rich.text
import textual.content
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._ansi_sequences import SYNC_END as SYNC_END
from textual._ansi_sequences import SYNC_START as SYNC_START
from textual._compositor import ChopsUpdate, Compositor
from textual._xterm_parser import XTermParser as XTermParser
from textual.app import App
from textual.content import Content
from textual.geometry import Region
from textual.keys import _character_to_key
from textual.reactive import Reactive
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip

from specchat.app.sanitize import escape_controls
from specchat.app.ui.rendering.cells import placed


def use_narrow_compositor(screen: Screen[Any]) -> None:
    """Give a screen the `NarrowCompositor`: Textual has no public way to choose a compositor."""
    screen._compositor = NarrowCompositor()


def keymap_of(app: App[Any]) -> Mapping[str, str]:
    """The keys that `App.set_keymap` has set, by binding; Textual has no public way to read them."""
    return app._keymap


def key_of_character(character: str) -> str:
    """Textual's name of the key for a character."""
    return _character_to_key(character)


def disable_toasts(app: App[Any]) -> None:
    """Leave notices to the app: Textual has no public option against its own."""
    app._disable_notifications = True


def show_as_text(app: App[Any]) -> None:
    """Show every string as it is: never as markup, and with signs instead of characters on which a terminal acts.

    Textual reads markup in titles of borders, tooltips, options and the palette, and lets escape sequences pass; no
    public option covers all four.
    """
    app.console._markup = False
    for module, name, own in (
        (Content, "from_markup", classmethod(_plain)),
        (textual.content, "_strip_control_codes", escape_controls),
        (rich.text, "strip_control_codes", escape_controls),
        (Strip, "render", _render),
    ):
        setattr(module, name, own)


def _plain(cls: type[Content], text: str | Content) -> Content:
    return text if isinstance(text, Content) else cls(text)


_textual_render = Strip.render


def _render(strip: Strip, console: Console) -> str:
    """Terminal sequences of a line. Characters of no width are left out if a widget has not replaced them."""
    if strip._render_cache is None:
        shown = strip
        if escape_controls(strip.text) != strip.text:
            visible = ("".join(c for c in text if escape_controls(c) == c) for text, _, _ in strip._segments)
            shown = Strip([Segment(text, style) for text, (_, style, _) in zip(visible, strip._segments, strict=True)])
        strip._render_cache = placed(_textual_render(shown, console))
    return strip._render_cache


class NarrowCompositor(Compositor):
    """Textual's compositor, with partial updates limited to the changed lines and their visible widgets.

    Textual requests all lines of every widget whose container overlaps the rectangle around all changes. For one line
    of a growing reply that is nearly every line of the screen. Benefit: 5 % of a core.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[Region] | None = None
        """Regions of the partial update in progress."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """The changes since the last update; None without any."""
        self._changed = list(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """For each widget, from front to back: the region of its changed lines, the visible part of it, and the lines.

        Widgets are skipped where another one covers all of a changed region.
        """
        if self._changed is None:
            return super()._get_renders(crop)
        renders: list[tuple[Region, Region, list[Strip]]] = []
        changed = self._changed
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            parts = [part for each in changed if (part := each.intersection(seen))]
            if not parts:
                continue
            first, end = min(part.y for part in parts), max(part.bottom for part in parts)
            lines = Region(seen.x, first, seen.width, end - first)
            renders.append((lines, lines, widget.render_lines(lines.translate(-region.offset))))
            changed = [each for each in changed if not seen.contains_region(each)]
            if not changed:
                break
        return renders


class BarredScrollView(ScrollView):
    """A scroll view with a `VerticalBar`. Textual creates its own scrollbar class in a property."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scrollbar, created on first use."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = VerticalBar(name="vertical", thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Set the position: the bar appears after the scrolling that needs it."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y


class VerticalBar(ScrollBar):
    """A scrollbar that is drawn again only when its thumb moves by a visible amount, from cached lines.

    A growing reply moves it up to ten times per second, mostly by less than an eighth of a cell. Benefit: 3 % of a
    core.
    """

    window_virtual_size: Reactive[int] = Reactive(100, repaint=False)
    window_size: Reactive[int] = Reactive(0, repaint=False)
    position: Reactive[float] = Reactive(0.0, repaint=False)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn: tuple[int, int] | None = None
        """The last drawn `_thumb`."""

    def _refresh_if_moved(self) -> None:
        if self._thumb != self._drawn:
            self.refresh()

    watch_window_virtual_size = watch_window_size = watch_position = _refresh_if_moved

    @property
    def _thumb(self) -> tuple[int, int]:
        """Start and length in eighths of a cell, the unit in which Textual draws it."""
        room, size, window = self.size.height, self.window_virtual_size, self.window_size
        if not 0 < window < size:
            return 0, 0
        length = max(1.0, window * room / size)
        return int((room - length) * self.position / (size - window) * 8), ceil(length * 8)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of the bar."""
        self._drawn = self._thumb
        bar = self.render()
        assert isinstance(bar, ScrollBarRender)
        assert isinstance(bar.style, Style)
        assert bar.style.bgcolor is not None
        assert bar.style.color is not None
        sizes = self.size.height, bar.virtual_size, bar.window_size, bar.position, self.size.width
        lines = bar.render_bar(*sizes, back_color=bar.style.bgcolor, bar_color=bar.style.color).segments
        background = self.background_colors[1]
        filters = self.app.get_line_filters()
        strips = [_strip(line.text, line.style) for line in lines[crop.y : crop.bottom]]
        for line_filter in filters:
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        return strips


@lru_cache(256)
def _strip(text: str, style: Style) -> Strip:
    return Strip([Segment(text, style)])
