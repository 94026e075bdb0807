"""Changes to private parts of Textual."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import ceil
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.reactive import Reactive
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class NarrowCompositor(Compositor):
    """Textual's compositor, with partial updates limited to what has changed.

    Textual asks every widget whose container overlaps the rectangle around all changes for all of its lines, which for
    a line of a growing reply is nearly every line of the screen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[Region] | None = None
        """What a partial update draws; None while none is made."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What has changed since the last update; None if nothing has."""
        self._changed = list(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """Of each widget, from front to back: where its lines stand, twice, and the lines.

        What lies behind a widget that has all of a changed region is not seen there.
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


class VerticalBar(ScrollBar):
    """Looks and works like its base.

    Beside a growing reply it moves up to ten times a second, mostly by less than can be seen. Its lines are few
    different ones, and each is made once.
    """

    window_virtual_size: Reactive[int] = Reactive(100, repaint=False)
    window_size: Reactive[int] = Reactive(0, repaint=False)
    position: Reactive[float] = Reactive(0.0, repaint=False)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn: tuple[int, int] | None = None
        """`_thumb` as it was drawn last."""

    def watch_window_virtual_size(self) -> None:
        """There is more to scroll through, or less."""
        self._move()

    def watch_window_size(self) -> None:
        """More of it is in sight, or less."""
        self._move()

    def watch_position(self) -> None:
        """Something else is in sight."""
        self._move()

    def _move(self) -> None:
        if self._thumb != self._drawn:
            self.refresh()

    @property
    def _thumb(self) -> tuple[int, int]:
        """Where it begins, and its length, in eighths of a cell, of which Textual draws it."""
        room, size, window = self.size.height, self.window_virtual_size, self.window_size
        if not 0 < window < size:
            return 0, 0
        length = max(1.0, window * room / size)
        return int((room - length) * self.position / (size - window) * 8), ceil(length * 8)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of the bar, from top to bottom."""
        self._drawn = self._thumb
        bar = self.render()
        assert isinstance(bar, ScrollBarRender)
        assert isinstance(bar.style, Style)
        assert bar.style.bgcolor is not None
        assert bar.style.color is not None
        lines = bar.render_bar(
            size=self.size.height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            thickness=self.size.width,
            back_color=bar.style.bgcolor,
            bar_color=bar.style.color,
        ).segments
        background = self.background_colors[1]
        filters = self.app.get_line_filters()
        strips = [_strip(line.text, line.style) for line in lines[crop.y : crop.bottom]]
        for line_filter in filters:
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        return strips


@lru_cache(256)
def _strip(text: str, style: Style) -> Strip:
    return Strip([Segment(text, style)])
