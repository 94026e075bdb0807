"""The conversation on screen: a line-API widget that draws what is visible and, while a reply grows, its last lines."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget

from app.conversation import Conversation, Turn
from app.reply import Reply
from app.widgets.blocks import Block, PromptBlock, ReplyBlock, legend_strip
from app.widgets.line_selection import LineSelection
from app.widgets.look import PART_CLASSES, TOKEN_CLASSES, Look, look_of
from app.widgets.scroll_bar import VerticalBar
from app.widgets.token_cursor import Spot

if TYPE_CHECKING:
    from app.specchat import SpecChat

LINE_WIDTH = 104
"""Longer lines are hard to read."""
MOST_DRAWN = 400
"""Lines that are kept as they were drawn. Each takes tens of kB, with all that Textual remembers of it."""
TOP = 1
"""Empty lines above the first prompt."""


class Transcript(LineSelection, can_focus=True):
    """A conversation, token by token, or with its finished replies as Markdown. Follows the end unless scrolled up."""

    app: SpecChat
    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | PART_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_home", "First line", show=False),
        Binding("end", "scroll_end", "Last line", show=False),
    ]

    @dataclass
    class CopyWanted(Message):
        """Copy this reply."""

        reply: Reply

    show_rejected = reactive(True, init=False)
    markdown = reactive(False, init=False)
    by_round = reactive(False, init=False)
    """One round per line."""

    def __init__(self, conversation: Conversation, **options: Any) -> None:
        super().__init__(**options)
        self.conversation = conversation
        self._blocks: list[Block] = []
        self._parts: list[Turn | Reply] = []
        self._tops: list[int] = [TOP]
        """The first line of each block, then the number of all lines."""
        self._following = True
        """Whether the end stays in sight while it moves on; until the user scrolls away from it."""
        self._moving = False
        """Whether it is not the user who scrolls."""
        self._updates = 0
        self._behind = False
        """Whether the end has moved on since it was last brought into sight."""
        self._look: Look | None = None
        self._drawn: dict[int, tuple[Strip, Strip]] = {}
        """Of each line that was drawn: as its block gave it, and as it was handed out."""
        self._drawn_for: tuple[object, ...] = ()
        """What else the latter depends on."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scrollbar, made when it is first asked for, as Textual does."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = VerticalBar(name="vertical", thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def show(self, conversation: Conversation) -> None:
        """Show another conversation, from its end."""
        self.conversation = conversation
        self.spot = None
        self._following = True
        self._rebuild()

    def parts(self) -> list[Turn | Reply]:
        """What there is to show: prompts and replies, from top to bottom."""
        parts: list[Turn | Reply] = []
        for turn in self.conversation.turns:
            parts.append(turn)
            if turn.reply is not None:
                parts.append(turn.reply)
        return parts

    def look_at(self, spot: Spot | None, *, scroll: bool = True) -> None:
        """Mark a token; while one is looked at, the view stays where it is."""
        super().look_at(spot, scroll=scroll)
        self._following = spot is None and self.is_vertical_scroll_end

    def follow(self) -> None:
        """Show the end, and stay there."""
        self._following = True
        self._keep_end()

    def update(self) -> None:
        """Show what has become of the conversation since the last call."""
        dirty = self._sync_blocks()
        for number, block in enumerate(self._blocks):
            changed = block.update()
            if changed is not None and number < len(self._tops):  # new blocks lie below what is dirty already
                line = self._tops[number] + changed
                dirty = line if dirty is None else min(dirty, line)
        if dirty is not None:
            before = self._tops[-1]
            self._tops = list(accumulate((block.height for block in self._blocks), initial=TOP))
            self._refresh_seen(dirty, max(before, self._tops[-1]) + 1)
            self._behind = self._behind or self._tops[-1] != before
        self._updates += 1
        if self._behind and self._updates % self.app.follow_every == 0:
            self._catch_up()

    def _refresh_seen(self, first: int, end: int) -> None:
        """Draw again what is in sight of these lines: Textual would draw what lies below the widget along with them."""
        top = self.scroll_offset.y
        first, end = max(first, top), min(end, top + self.size.height)
        if first < end:
            self.refresh_lines(first, end - first)

    def _catch_up(self) -> None:
        """Say how much there is to scroll through by now, and keep the end in sight."""
        self._behind = False
        self._resize_content(Size(self._width, self._tops[-1]))
        self._keep_end()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Hand lines out as they were drawn before, and with them what Textual has worked out about them.

        Its own way makes a new strip of each line whenever the view scrolls, which costs more than all else here.
        The widget can have no border and no padding for that.
        """
        _base, background = self.background_colors
        filters = self.app.get_line_filters()
        look, top, selection = self._current_look(), self.scroll_offset.y, self.text_selection
        drawn_for = (look, self.size.width, background, *filters)
        if len(self._drawn) > MOST_DRAWN:
            self._drawn = {}
            for block in self._blocks:
                block.forget()
        if drawn_for != self._drawn_for or selection is not None:
            self._drawn, self._drawn_for = {}, drawn_for
        strips = []
        for y in crop.line_range:
            plain = self._line(y + top, look)
            known = self._drawn.get(y + top)
            if known is None or known[0] is not plain:
                strip = self.render_line(y)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                known = self._drawn[y + top] = plain, strip
            strips.append(known[1])
        first, last = crop.column_span
        return strips if (first, last) == (0, self.size.width) else [strip.crop(first, last) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        look = self._current_look()
        line = y + self.scroll_offset.y
        strip = self._line(line, look).adjust_cell_length(self.size.width, look.base)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = self._selected(strip, *span)
        return strip.apply_offsets(0, line)

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with what the colours mean below them; and the width of all of them."""
        look, width = self._current_look(), max(self.size.width, 2)
        lines = [self._line(y, look) for y in range(self._tops[-1])]
        lines.append(legend_strip(look))
        return [line.adjust_cell_length(width, look.base) for line in lines], width

    def action_copy_reply(self, identity: int) -> None:
        """A click on the word below a reply."""
        reply = next((part for part in self._parts if id(part) == identity), None)
        if isinstance(reply, Reply):
            self.post_message(self.CopyWanted(reply))

    def notify_style_update(self) -> None:
        """Another theme: resolve the styles and draw everything again."""
        super().notify_style_update()
        self._look = None
        for block in self._blocks:
            block.forget()
        if self.markdown:
            self._rebuild()  # Markdown is rendered with its colours

    def on_resize(self, event: Resize) -> None:
        """Wrap again if the width has changed."""
        if self._blocks and self._blocks[0].width != self._width and event.size.width:
            self._rebuild()
        self._keep_end()
        if self.spot is not None:
            self.look_at(self.spot)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Who scrolls to the end follows it; who scrolls away does not."""
        super().watch_scroll_y(old_value, new_value)
        if not self._moving:
            self._following = self.is_vertical_scroll_end

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """The bar comes after the scrolling that called for it, and is told only of what it is there for."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y

    def watch_show_rejected(self) -> None:
        """Wrap again with, or without, what is no part of the text."""
        self._rebuild()

    def watch_markdown(self) -> None:
        """Show the other view."""
        self._rebuild()

    def watch_by_round(self) -> None:
        """Lay the tokens out the other way."""
        self._rebuild()

    @property
    def _width(self) -> int:
        return min((self.scrollable_content_region.width or 80) - 1, LINE_WIDTH)

    def _rebuild(self) -> None:
        """Make all blocks anew; what was at the top of the screen stays there."""
        top = self.scroll_offset.y
        block = min(bisect_right(self._tops, top), len(self._blocks)) - 1
        below = top - self._tops[block]
        self._blocks, self._parts = [], []
        self._tops = [TOP]
        self.update()
        self.refresh()
        self._catch_up()
        if not self._following and 0 <= block < len(self._blocks):
            line = self._tops[block] + min(below, self._blocks[block].height - 1)
            self.scroll_to(y=line, animate=False, immediate=True, force=True)

    def _resize_content(self, size: Size) -> None:
        """Tell how much there is to scroll through.

        Textual lays the whole screen out anew for that; only a scrollbar that comes or goes is worth it. Without
        this, each new line of a reply would cost as much as thirty drawn ones.
        """
        room = self.container_size.height
        self._moving = True
        if (self.virtual_size.height > room) is (size.height > room):
            self.set_reactive(Widget.virtual_size, size)
            self._scroll_update(size)
        else:
            self.virtual_size = size
        self._moving = False

    def _keep_end(self) -> None:
        if self._following:
            self._moving = True
            # Forced: the scrollbar that would allow it is there only after the next layout.
            self.scroll_end(animate=False, immediate=True, force=True, x_axis=False)
            self._moving = False

    def _sync_blocks(self) -> int | None:
        """One block for each prompt and each reply; the line from which on blocks came or went, or None."""
        parts = self.parts()
        if parts == self._parts:
            return None
        pairs = zip(parts, self._parts, strict=False)
        kept = next((i for i, (new, old) in enumerate(pairs) if new is not old), min(len(parts), len(self._parts)))
        self._blocks[kept:] = [self._block(part) for part in parts[kept:]]
        self._parts = parts
        return self._tops[kept]

    def _block(self, part: Turn | Reply) -> Block:
        if isinstance(part, Turn):
            return PromptBlock(part, self._width)
        render = self._render_markdown if self.markdown else None
        block = ReplyBlock(part, self._width, show_rejected=self.show_rejected, markdown=render, by_round=self.by_round)
        if self.spot is not None and part is self.spot.reply:
            block.select(self.spot.token)
        return block

    def _render_markdown(self, text: str, width: int) -> list[Strip]:
        from app.widgets.markdown import markdown_strips  # loads a parser and a highlighter

        return markdown_strips(self.app.console, text, width, self._current_look(), dark=self.app.current_theme.dark)

    def _line(self, line: int, look: Look) -> Strip:
        block = bisect_right(self._tops, line) - 1
        if not 0 <= block < len(self._blocks):
            return Strip([])
        return self._blocks[block].strip(line - self._tops[block], look)

    def _current_look(self) -> Look:
        if self._look is None:
            self._look = look_of(self.rich_style, self.get_component_rich_style)
        return self._look
