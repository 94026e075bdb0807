"""Paints the lines of a transcript that are in sight, with the marks that pass: letters and the selection of text."""

from __future__ import annotations

from functools import partial

from rich.segment import Segment
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from specchat.app.ui.rendering.block import INDENT
from specchat.app.ui.rendering.block_maker import BlockMaker
from specchat.app.ui.rendering.block_stack import BlockStack, TurnOrReply
from specchat.app.ui.rendering.drawn_lines import DrawnLines
from specchat.app.ui.rendering.figures import FATES
from specchat.app.ui.rendering.line_selection import highlighted
from specchat.app.ui.rendering.transcript_styles import TranscriptStyles


class LinePainter:
    """Paints the lines of one view from its blocks. Lines are numbered through all blocks."""

    def __init__(self, view: ScrollView, stack: BlockStack, maker: BlockMaker) -> None:
        self._view = view
        self._stack = stack
        self._maker = maker
        self._drawn = DrawnLines()
        self._letters: dict[int, str] = {}
        """Shown at the beginning of these lines."""

    def lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of the screen as they were drawn before, with what Textual has worked out about them.

        Textual's own way makes a new strip of each line whenever the view scrolls, and marks each segment with its
        place for the selection of text, which costs more than all else here: it reads those marks from `render_line`
        alone. The widget can have no border and no padding for that.
        """
        view, styles = self._view, self._maker.styles
        _base, background = view.background_colors
        filters = view.app.get_line_filters()
        if self._drawn.full:
            self._drawn.clear()
            for block in self._stack.blocks:
                block.forget()
        self._drawn.use((styles, view.size.width, background, *filters))

        def draw(line: int) -> Strip:
            strip = self.line(line)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            return strip

        lines = [y + view.scroll_offset.y for y in crop.line_range]
        if view.text_selection is not None or self._letters:  # marks that pass
            strips = [draw(line) for line in lines]
        else:
            strips = [self._drawn.get(self._stack.strip(line, styles), partial(draw, line)) for line in lines]
        first, last = crop.column_span
        return strips if (first, last) == (0, view.size.width) else [strip.crop(first, last) for strip in strips]

    def line(self, line: int) -> Strip:
        """One line with its marks."""
        view, styles = self._view, self._maker.styles
        strip = self._stack.strip(line, styles).adjust_cell_length(view.size.width, styles.base)
        if letter := self._letters.get(line):
            strip = Strip.join([Strip([Segment(f" {letter} ", styles.cursor)]), strip.crop(3)])
        selection = view.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = highlighted(strip, *span, view.screen.get_component_rich_style("screen--selection"))
        return strip

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with what the colours mean below them; and the width of all of them."""
        styles, width = self._maker.styles, max(self._view.size.width, 2)
        lines = [self._stack.strip(y, styles) for y in range(self._stack.height)]
        lines.append(legend_strip(styles))
        return [line.adjust_cell_length(width, styles.base) for line in lines], width

    def letter(self, letters: str) -> dict[str, TurnOrReply]:
        """Show a letter beside each message in sight, and give what each stands for; without letters, show none."""
        height, top = self._view.size.height, self._view.scroll_offset.y
        seen = [
            (max(first, top), part)
            for part, first, end in zip(self._stack.parts, self._stack.tops, self._stack.tops[1:], strict=False)
            if first < top + height and end > top
        ]
        lettered = list(zip(letters, seen, strict=False))
        self._letters = {line: letter for letter, (line, _) in lettered}
        self._view.refresh()
        return {letter: part for letter, (_, part) in lettered}


def legend_strip(styles: TranscriptStyles) -> Strip:
    """What the colours mean, for a picture that goes without the line at the top."""
    names = ((Segment(fate.value, styles.fates[fate]), Segment("  ", styles.base)) for fate in FATES)
    return Strip([Segment(" " * INDENT, styles.base), *(segment for name in names for segment in name)])
