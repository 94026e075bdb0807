"""A scrollbar that is cheap to move: Textual's own, without its general way from a renderable to lines."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.reactive import Reactive
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


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
