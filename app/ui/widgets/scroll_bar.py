"""A scrollbar that is cheap to move: Textual's own, without its general way from a renderable to lines."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class VerticalBar(ScrollBar):
    """Looks and works like its base.

    Beside a growing reply it moves up to ten times a second. Its lines are few different ones, and each is made once.
    """

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of the bar, from top to bottom."""
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
