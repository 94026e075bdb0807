"""Selecting in a transcript, by mouse and line by line, and what is copied of it."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Offset, Region
from textual.selection import Selection
from textual.strip import Strip

from app.widgets.look import Look
from app.widgets.token_cursor import TokenCursor


class LineSelection(TokenCursor):
    """The part of `Transcript` that knows what is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+up", "select_lines(-1)", "Select lines", show=False),
        Binding("shift+down", "select_lines(1)", "Select lines", show=False),
    ]
    ALLOW_SELECT = True

    _selecting: tuple[int, int] | None = None
    """Where lines that are selected by key begin, and where they end by now."""

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, for the clipboard: as it was written, not as it is wrapped."""
        look = self._current_look()
        text = ""
        for y in range(selection.start.y if selection.start else 0, self._tops[-1]):
            span = selection.get_span(y)
            if span is None:
                break
            block = bisect_right(self._tops, y) - 1
            if 0 <= block < len(self._blocks):
                end = self.size.width if span[1] == -1 else span[1]
                part, joint = self._blocks[block].plain(y - self._tops[block], span[0], end, look)
                text += part + joint
        return text.removesuffix("\n"), "\n"

    def action_select_lines(self, by: int) -> None:
        """Begin to select with the last line in sight (the first one, going down), then line by line; ^c copies."""
        top, height = self.scroll_offset.y, self.size.height
        last = self._tops[-1] - 1
        if self.text_selection is None or self._selecting is None:
            start = min(top if by > 0 else top + height - 1, last)
            self._selecting = (start, start)
        else:
            anchor, at = self._selecting
            self._selecting = (anchor, min(max(at + by, 0), last))
        begin, end = sorted(self._selecting)
        self.screen.selections = {self: Selection(Offset(0, begin), Offset(self.size.width, end))}
        self.scroll_to_region(Region(0, self._selecting[1], 1, 1), animate=False)

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002 the base class names it
        """Show what is selected."""
        self.refresh()

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        style = self.screen.get_component_rich_style("screen--selection")
        end = strip.cell_length if end == -1 else min(end, strip.cell_length)
        before, selected, after = strip.crop(0, start), strip.crop(start, end), strip.crop(end)
        return Strip.join([before, selected.apply_style(style), after])

    def _current_look(self) -> Look:
        raise NotImplementedError
