"""Selection of lines of a transcript by key, and the unwrapped text of any selection."""

from __future__ import annotations

from rich.style import Style
from textual.geometry import Offset, Region
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.styles import TranscriptStyles


class LineSelection:
    """The lines that are selected by key: from an anchor to the line that the last key reached."""

    def __init__(self, stack: BlockStack) -> None:
        self._stack = stack
        self._ends: tuple[int, int] | None = None
        """Anchor and present line; None until lines are selected by key."""

    def extend(self, view: ScrollView, by: int) -> None:
        """Select one more line below (`by` 1) or above (-1), and scroll to it.

        The first call selects the first visible line going down, the last one going up.
        """
        (width, height), top, last = view.size, view.scroll_offset.y, self._stack.height - 1
        if self._ends is None or view.text_selection is None:
            start = min(top if by > 0 else top + height - 1, last)
            self._ends = (start, start)
        else:
            anchor, at = self._ends
            self._ends = (anchor, min(max(at + by, 0), last))
        begin, end = sorted(self._ends)
        view.screen.selections = {view: Selection(Offset(0, begin), Offset(width, end))}
        view.scroll_to_region(Region(0, self._ends[1], 1, 1), animate=False)

    def text(self, selection: Selection, width: int, styles: TranscriptStyles) -> str:
        """The selected text, for the clipboard: as it was written, not as it is wrapped."""
        text = ""
        for y in range(selection.start.y if selection.start else 0, self._stack.height):
            span = selection.get_span(y)
            if span is None:
                break
            number = self._stack.number_at(y)
            if number is not None:
                end = width if span[1] == -1 else span[1]
                part, joint = self._stack.blocks[number].plain(y - self._stack.tops[number], span[0], end, styles)
                text += part + joint
        return text.removesuffix("\n")


def highlighted(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """The line with these cells in the style of a selection; an end of -1 is that of the line."""
    end = strip.cell_length if end == -1 else min(end, strip.cell_length)
    before, selected, after = strip.crop(0, start), strip.crop(start, end), strip.crop(end)
    return Strip.join([before, selected.apply_style(style), after])
