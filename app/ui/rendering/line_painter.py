"""Draws the visible lines of a transcript, with letters and the text selection, and pictures of whole transcripts."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import partial

from rich.console import Console
from rich.segment import Segment, Segments
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from specchat.app.chat.reply import Reply
from specchat.app.chat.turn import Turn
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.block import INDENT, Block, Look, TurnOrReply
from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.figures import FATES
from specchat.app.ui.rendering.line_selection import highlighted
from specchat.app.ui.rendering.live_markdown import LiveMarkdown
from specchat.app.ui.rendering.prompt_block import PromptBlock
from specchat.app.ui.rendering.reply_block import ReplyBlock
from specchat.app.ui.rendering.reply_notes import COPY
from specchat.app.ui.rendering.styles import TranscriptStyles
from specchat.app.ui.rendering.token_cursor import Spot


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
        if view.text_selection is not None or self._letters:  # temporary marks
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
        """Mark each visible message with a letter, and return the messages by letter; "" removes the letters."""
        height, top = self._view.size.height, self._view.scroll_offset.y
        seen = [(max(first, top), part) for first, part in self._stack.parts_between(top, top + height)]
        lettered = list(zip(letters, seen, strict=False))
        self._letters = {line: letter for letter, (line, _) in lettered}
        self._view.refresh()
        return {letter: part for letter, (_, part) in lettered}


def legend_strip(styles: TranscriptStyles) -> Strip:
    """The legend of the colours, for pictures without a header."""
    names = ((Segment(fate.value, styles.fates[fate]), Segment("  ", styles.base)) for fate in FATES)
    return Strip([Segment(" " * INDENT, styles.base), *(segment for name in names for segment in name)])


class BlockMaker:
    """Creates the blocks of one widget, with the styles of its component classes."""

    def __init__(self, view: Widget, pace: Callable[[], Pace]) -> None:
        self._view = view
        self._pace = pace
        self._styles: TranscriptStyles | None = None
        """Resolved when first needed, for one theme."""

    @property
    def styles(self) -> TranscriptStyles:
        """The styles of the current theme."""
        if self._styles is None:
            self._styles = TranscriptStyles.of(self._view.rich_style, self._view.get_component_rich_style)
        return self._styles

    def forget_styles(self) -> None:
        """Another theme."""
        self._styles = None

    def make(self, part: TurnOrReply, width: int, spot: Spot | None, look: Look) -> Block:
        """The block of a prompt or a reply, in which the selected token is marked if it has it."""
        if isinstance(part, Turn):
            return PromptBlock(part, width)
        lines = self._markdown(part, width - INDENT) if look.markdown else None
        block = ReplyBlock(part, width, look, lines)
        if spot is not None and part is spot.reply:
            block.select(spot.token)
        return block

    def _markdown(self, reply: Reply, width: int) -> LiveMarkdown:
        """The Markdown lines of a reply."""
        from specchat.app.ui.rendering.markdown import MarkdownRenderer  # slow to import, and not needed at the start

        app, identity = self._view.app, id(reply)
        dark = app.current_theme.dark

        def copy(number: int) -> str:
            return f"request('code', {identity}, ({number},))"

        return LiveMarkdown(MarkdownRenderer(app.console, width, self.styles, dark=dark, copy=copy), self._pace)


MOST = 400
"""Maximum number of cached lines. Each takes tens of kB, including Textual's own caches."""


class DrawnLines:
    """Cache of finished strips by their source strips, valid for one state of everything else that they depend on."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Strip, Strip]] = {}
        """The source strip and the finished strip, by the identity of the source."""
        self._state: tuple[object, ...] = ()

    @property
    def full(self) -> bool:
        """Whether more lines are kept than `MOST`."""
        return len(self._lines) > MOST

    def clear(self) -> None:
        """Forget every line."""
        self._lines = {}

    def use(self, state: tuple[object, ...]) -> None:
        """Forget every line if the state they were drawn for has changed."""
        if state != self._state:
            self._lines, self._state = {}, state

    def get(self, plain: Strip, draw: Callable[[], Strip]) -> Strip:
        """The finished line of a source strip (`plain`), drawn if it is not cached."""
        known = self._lines.get(id(plain))
        if known is None:
            known = self._lines[id(plain)] = plain, draw()
        return known[1]


def conversation_svg(title: str, strips: Iterable[Strip], width: int) -> str:
    """A whole conversation, however long, as it would look on a terminal that is high enough."""
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True,
        legacy_windows=False, safe_box=False,
    )  # fmt: skip
    for strip in strips:
        shown = [
            Segment(" " * len(s.text), s.style) if s.text == COPY and s.style and s.style.meta else s for s in strip
        ]
        console.print(Segments([*shown, Segment.line()]), end="")
    return console.export_svg(title=title)
