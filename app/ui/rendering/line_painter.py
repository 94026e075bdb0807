"""Draws the visible lines of a transcript, with letters and the text selection."""

from functools import cached_property

from rich.segment import Segment
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from specchat.app.ui.rendering.block import TurnOrReply
from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.pictures import legend
from specchat.app.ui.rendering.styles import TranscriptStyles

MOST = 400
"""Maximum number of finished lines that are kept. Each takes tens of kB, including Textual's own caches."""


class LinePainter:
    """Paints the lines of one view from its blocks. Lines are numbered through all blocks."""

    def __init__(self, view: ScrollView, stack: BlockStack) -> None:
        self._view, self._stack = view, stack
        self._finished: dict[int, Strip] = {}
        """Lines as they were drawn last, for the state of everything else that they depend on."""
        self._state: tuple[object, ...] = ()
        self._letters: dict[int, str] = {}
        """Shown at the beginning of these lines."""

    @cached_property
    def styles(self) -> TranscriptStyles:
        """The styles of the component classes in the current theme."""
        return TranscriptStyles.of(self._view.rich_style, self._view.get_component_rich_style)

    def forget_styles(self) -> None:
        """Another theme."""
        vars(self).pop("styles", None)

    def forget(self, first: int = 0) -> None:
        """Draw the lines from `first` on anew when they are visible."""
        self._finished = {line: strip for line, strip in self._finished.items() if line < first}

    def lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of the screen as they were drawn before, with what Textual has worked out about them.

        Textual's own way makes a new strip of each line whenever the view scrolls, and marks each segment with its
        place for the selection of text, which costs more than all else here: it reads those marks from `render_line`
        alone. The widget can have no border and no padding for that.
        """
        view = self._view
        filters, background = view.app.get_line_filters(), view.background_colors[1]
        state = self.styles, view.size.width, background, *filters
        if state != self._state or len(self._finished) > MOST:
            self._finished, self._state = {}, state
        finished = self._finished
        if view.text_selection is not None or self._letters:  # temporary marks
            finished = {}
        strips = []
        for line in (y + view.scroll_offset.y for y in crop.line_range):
            if (strip := finished.get(line)) is None:
                strip = self.line(line)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                finished[line] = strip
            strips.append(strip)
        first, last = crop.column_span
        return strips if (first, last) == (0, view.size.width) else [strip.crop(first, last) for strip in strips]

    def line(self, line: int) -> Strip:
        """One line with its marks."""
        view, styles = self._view, self.styles
        strip = self._stack.strip(line, styles).adjust_cell_length(view.size.width, styles.base)
        if letter := self._letters.get(line):
            strip = Strip.join([Strip([Segment(f" {letter} ", styles["cursor"])]), strip.crop(3)])
        selection = view.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            start, end = span[0], strip.cell_length if span[1] == -1 else min(span[1], strip.cell_length)
            selected = strip.crop(start, end).apply_style(view.screen.get_component_rich_style("screen--selection"))
            strip = Strip.join([strip.crop(0, start), selected, strip.crop(end)])
        return strip

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with the legend below them; and the width of all of them."""
        styles, width = self.styles, max(self._view.size.width, 2)
        lines = [self._stack.strip(y, styles) for y in range(self._stack.height)]
        lines += legend(lines, styles)
        return [line.adjust_cell_length(width, styles.base) for line in lines], width

    def letter(self, letters: str) -> dict[str, TurnOrReply]:
        """Mark each visible message with a letter, and return the messages by letter; "" removes the letters."""
        height, top = self._view.size.height, self._view.scroll_offset.y
        seen = [(max(first, top), part) for first, part in self._stack.parts_between(top, top + height)]
        lettered = list(zip(letters, seen, strict=False))
        self._letters = {line: letter for letter, (line, _) in lettered}
        self._view.refresh()
        return {letter: part for letter, (_, part) in lettered}
