"""The conversation on screen: a line-API widget that draws what is visible and, while a reply grows, its last lines."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import Selection
from textual.strip import Strip

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.ui.pace import Pace
from specchat.app.ui.widgets.block_stack import TOP, BlockStack, TurnOrReply, all_parts
from specchat.app.ui.widgets.blocks import Block, PromptBlock, ReplyBlock, legend_strip
from specchat.app.ui.widgets.drawn_lines import DrawnLines
from specchat.app.ui.widgets.end_follower import EndFollower
from specchat.app.ui.widgets.line_selection import SELECTION_KEYS, LineSelection, highlighted
from specchat.app.ui.widgets.scroll_bar import VerticalBar
from specchat.app.ui.widgets.token_cursor import TOKEN_KEYS, Spot, TokenCursor
from specchat.app.ui.widgets.transcript_styles import PART_CLASSES, TOKEN_CLASSES, TranscriptStyles, styles_of

FIRST_CHARACTERS = 12_000
"""A chat is opened with its last prompts and replies of this length."""
NEAR = 3
"""What is above is laid out once one has scrolled to within so many screens of it."""
EARLIER_S = 0.008
"""How long a frame does so."""
LINE_WIDTH = 104
"""Longer lines are hard to read."""
PartsOf = Callable[[Conversation], list[TurnOrReply]]


class Transcript(ScrollView, can_focus=True):
    """A conversation, token by token, or with its finished replies as Markdown. Follows the end unless scrolled up."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | PART_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = [
        *TOKEN_KEYS,
        *SELECTION_KEYS,
        Binding("home", "scroll_home", "First line", show=False),
        Binding("end", "scroll_end", "Last line", show=False),
    ]

    @dataclass
    class CopyWanted(Message):
        """Copy this reply."""

        reply: Reply

    @dataclass
    class TokenSelected(Message):
        """The user selected this token, by key or by mouse."""

        spot: Spot

    @dataclass
    class ForkWanted(Message):
        """Take another way at this token."""

        spot: Spot

    @dataclass
    class VersionWanted(Message):
        """Show another version of a prompt, or another reply to it."""

        turn: Turn
        of_reply: bool
        step: int

    show_rejected = reactive(True, init=False)
    markdown = reactive(False, init=False)
    by_round = reactive(False, init=False)
    """One round per line."""

    def __init__(self, conversation: Conversation, parts_of: PartsOf = all_parts, **options: Any) -> None:
        """Make it.

        Args:
            conversation: What is shown.
            parts_of: Which prompts and replies of it, from top to bottom.
            options: Those of any widget.
        """
        super().__init__(**options)
        self.conversation = conversation
        self.pace = Pace()
        self._parts_of = parts_of
        self._stack = BlockStack()
        self._cursor = TokenCursor(self._stack)
        self._selection = LineSelection(self._stack)
        self._drawn = DrawnLines()
        self._text_styles: TranscriptStyles | None = None
        """Resolved when first needed, for one theme."""
        self._end = EndFollower(self)
        self._updates = 0
        self._behind = False
        """Whether the end has moved on since it was last brought into sight."""
        self._hidden = 0
        """Prompts and replies at the beginning that are not laid out yet."""

    @property
    def spot(self) -> Spot | None:
        """The selected token."""
        return self._cursor.spot

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
        self._cursor.spot = None
        self._end.following = True
        self._rebuild()

    def _last_parts(self) -> int:
        """How many prompts and replies come before the last ones that fill a few screens."""
        parts, room = self._parts_of(self.conversation), FIRST_CHARACTERS
        while parts and room > 0:
            part = parts.pop()
            room -= 200 + len(part.prompt if isinstance(part, Turn) else part.text)
        return len(parts)

    def _lay_out_earlier(self, until: float) -> None:
        """Lay out more of what is above, latest first, until this time; what is in sight stays where it is."""
        while self._hidden and time.perf_counter() < until:
            self._hidden -= 1
            self._stack.update(self._parts, self._block)
            added = self._stack.height_of(1)
            if not self._end.following:
                self._end.grow(Size(self._width, self._stack.height))
                self.scroll_to(y=self.scroll_y + added, animate=False, immediate=True, force=True)
            self._behind = True
            self.refresh()

    @property
    def _parts(self) -> list[TurnOrReply]:
        """What is laid out, or about to be."""
        parts = self._parts_of(self.conversation)
        self._hidden = min(self._hidden, max(len(parts) - 2, 0))
        return parts[self._hidden :]

    def look_at(self, spot: Spot | None) -> None:
        """Select a token and bring it into sight; while one is selected, the view stays. None selects none."""
        self._cursor.select(spot)
        self.refresh()
        line = self._cursor.line
        if line is not None:
            height, top = self.size.height, self.scroll_offset.y
            if not top <= line < top + height:
                target = line - height // 2
                self.scroll_to(y=max(target, 0), animate=False, immediate=True, force=True)
        self._end.following = spot is None and self.is_vertical_scroll_end

    def last_spot(self) -> Spot | None:
        """The last token that is shown."""
        return self._cursor.last()

    def follow(self) -> None:
        """Show the end, and stay there."""
        self._end.following = True
        self._end.keep_end()

    def go_to(self, turn: Turn) -> None:
        """Bring a prompt to the top of the screen."""
        parts = self._parts_of(self.conversation)
        while turn in parts[: self._hidden]:
            self._lay_out_earlier(inf)
        self.update()
        line = self._stack.top_of(turn)
        if line is not None:
            self._end.following = False
            self._catch_up()
            self.scroll_to(y=line, animate=False, immediate=True, force=True)
            self._end.following = self.is_vertical_scroll_end

    def update(self) -> None:
        """Draw what has changed in the conversation since the last call."""
        before = self._stack.height
        if self._hidden and before > TOP and self.scroll_offset.y < NEAR * self.size.height:
            self._lay_out_earlier(time.perf_counter() + EARLIER_S)
        changed = self._stack.update(self._parts, self._block)
        if changed is not None:
            self._refresh_seen(*changed)
            self._behind = self._behind or self._stack.height != before
        self._updates += 1
        if self._behind and self._updates % self.pace.follow_every == 0:
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
        self._end.grow(Size(self._width, self._stack.height))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Hand lines out as they were drawn before, and with them what Textual has worked out about them.

        Its own way makes a new strip of each line whenever the view scrolls, which costs more than all else here.
        The widget can have no border and no padding for that.
        """
        _base, background = self.background_colors
        filters = self.app.get_line_filters()
        styles, top = self._drawing_styles(), self.scroll_offset.y
        if self._drawn.full:
            self._drawn.clear()
            for block in self._stack.blocks:
                block.forget()
        self._drawn.use((styles, self.size.width, background, *filters), keep=self.text_selection is None)

        def draw(y: int) -> Strip:
            strip = self.render_line(y)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            return strip

        strips = [
            self._drawn.get(y + top, self._stack.strip(y + top, styles), partial(draw, y)) for y in crop.line_range
        ]
        first, last = crop.column_span
        return strips if (first, last) == (0, self.size.width) else [strip.crop(first, last) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        styles = self._drawing_styles()
        line = y + self.scroll_offset.y
        strip = self._stack.strip(line, styles).adjust_cell_length(self.size.width, styles.base)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = highlighted(strip, *span, self.screen.get_component_rich_style("screen--selection"))
        return strip.apply_offsets(0, line)

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with what the colours mean below them; and the width of all of them."""
        self._lay_out_earlier(inf)
        styles, width = self._drawing_styles(), max(self.size.width, 2)
        lines = [self._stack.strip(y, styles) for y in range(self._stack.height)]
        lines.append(legend_strip(styles))
        return [line.adjust_cell_length(width, styles.base) for line in lines], width

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, for the clipboard: as it was written, not as it is wrapped."""
        return self._selection.text(selection, self.size.width, self._drawing_styles()), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002 the base class names it
        """Show what is selected."""
        self.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Arrows move between tokens while one is selected; else they scroll."""
        if action in ("move", "move_line", "move_round", "fork"):
            return self.spot is not None
        return super().check_action(action, parameters)

    def action_move(self, step: int) -> None:
        """To the next token that is shown, or to the one before."""
        self._tell(self._cursor.neighbour(step))

    def action_move_round(self, step: int) -> None:
        """To the first token of the next round, or of the one before."""
        self._tell(self._cursor.round(step))

    def action_move_line(self, step: int) -> None:
        """To the nearest token on the line above or below."""
        self._tell(self._cursor.vertical(step))

    def action_fork(self) -> None:
        """Take another way at the selected token."""
        if self.spot is not None:
            self.post_message(self.ForkWanted(self.spot))

    def action_version(self, identity: int, of_reply: bool, step: int) -> None:
        """A click on the marks of the versions."""
        turn = next((part for part in self._stack.parts if id(part) == identity), None)
        if isinstance(turn, Turn):
            self.post_message(self.VersionWanted(turn, of_reply, step))

    def action_select_lines(self, by: int) -> None:
        """Begin to select with the last line in sight (the first one, going down), then line by line; ^c copies."""
        selecting, (width, height) = self.text_selection is not None, self.size
        selection, line = self._selection.extend(by, self.scroll_offset.y, height, width, selecting=selecting)
        self.screen.selections = {self: selection}
        self.scroll_to_region(Region(0, line, 1, 1), animate=False)

    def action_copy_reply(self, identity: int) -> None:
        """A click on the word below a reply."""
        reply = next((part for part in self._stack.parts if id(part) == identity), None)
        if isinstance(reply, Reply):
            self.post_message(self.CopyWanted(reply))

    def on_click(self, event: Click) -> None:
        """Select the token that was clicked on; not at the end of a selection of text."""
        if self.text_selection is None:
            self._tell(self._cursor.at(int(event.y) + self.scroll_offset.y, int(event.x)))

    def notify_style_update(self) -> None:
        """Another theme: resolve the styles and draw everything again."""
        super().notify_style_update()
        self._text_styles = None
        for block in self._stack.blocks:
            block.forget()
        if self.markdown:
            self._rebuild()  # Markdown is rendered with its colours

    def on_resize(self, event: Resize) -> None:
        """Wrap again if the width has changed."""
        if self._stack.blocks and self._stack.blocks[0].width != self._width and event.size.width:
            self._rebuild()
        self._end.keep_end()
        if self.spot is not None:
            self.look_at(self.spot)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end if the user scrolls to it; stop if away from it."""
        super().watch_scroll_y(old_value, new_value)
        self._end.scrolled()

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
        stack, top = self._stack, self.scroll_offset.y
        if self._end.following:
            self._hidden = self._last_parts()
        block = min(bisect_right(stack.tops, top), len(stack.blocks)) - 1
        below = top - stack.tops[block]
        stack.clear()
        self.update()
        self.refresh()
        self._catch_up()
        if not self._end.following and 0 <= block < len(stack.blocks):
            line = stack.tops[block] + min(below, stack.blocks[block].height - 1)
            self.scroll_to(y=line, animate=False, immediate=True, force=True)

    def _block(self, part: TurnOrReply) -> Block:
        if isinstance(part, Turn):
            return PromptBlock(part, self._width)
        render = self._render_markdown if self.markdown else None
        block = ReplyBlock(part, self._width, show_rejected=self.show_rejected, markdown=render, by_round=self.by_round)
        if self.spot is not None and part is self.spot.reply:
            block.select(self.spot.token)
        return block

    def _render_markdown(self, text: str, width: int) -> list[Strip]:
        from specchat.app.ui.widgets.markdown import markdown_strips

        dark = self.app.current_theme.dark
        return markdown_strips(self.app.console, text, width, self._drawing_styles(), dark=dark)

    def _drawing_styles(self) -> TranscriptStyles:
        if self._text_styles is None:
            self._text_styles = styles_of(self.rich_style, self.get_component_rich_style)
        return self._text_styles

    def _tell(self, spot: Spot | None) -> None:
        if spot is not None:
            self.post_message(self.TokenSelected(spot))
