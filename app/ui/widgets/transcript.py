"""The conversation on screen: a line-API widget that draws what is visible and, while a reply grows, its last lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rich.segment import Segment
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
from specchat.app.settings.settings import FOLD, REJECTED
from specchat.app.storage.attachment import Attachment
from specchat.app.ui.keys import named
from specchat.app.ui.pace import Pace
from specchat.app.ui.widgets.block import Block
from specchat.app.ui.widgets.block_maker import BlockMaker
from specchat.app.ui.widgets.block_stack import TOP, BlockStack, TurnOrReply, all_parts
from specchat.app.ui.widgets.drawn_lines import DrawnLines
from specchat.app.ui.widgets.end_follower import EndFollower
from specchat.app.ui.widgets.found_line import FoundWord, line_of_word
from specchat.app.ui.widgets.legend import legend_strip
from specchat.app.ui.widgets.line_selection import SELECTION_KEYS, LineSelection, highlighted
from specchat.app.ui.widgets.place_keeper import PlaceKeeper
from specchat.app.ui.widgets.scroll_bar import VerticalBar
from specchat.app.ui.widgets.token_cursor import TOKEN_KEYS, Spot, TokenCursor
from specchat.app.ui.widgets.transcript_styles import PART_CLASSES, TOKEN_CLASSES
from specchat.app.ui.widgets.untold import mark_untold

FIRST_CHARACTERS = 12_000
"""A chat is opened with its last prompts and replies of this length."""
NEAR = 3
"""What is above is laid out with each frame once one has scrolled to within so many screens of it."""
LINE_WIDTH = 104
"""Longer lines are hard to read."""
PartsOf = Callable[[Conversation], list[TurnOrReply]]


class Transcript(ScrollView, can_focus=True):
    """A conversation, token by token, or with its finished replies as Markdown. Follows the end unless scrolled up."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | PART_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = named(
        "transcript",
        *TOKEN_KEYS,
        *SELECTION_KEYS,
        Binding("home,g", "scroll_home", "First line", show=False),
        Binding("end,G,shift+g", "scroll_end", "Last line", show=False),
        Binding("j", "scroll_down", "Scroll down", show=False),
        Binding("k", "scroll_up", "Scroll up", show=False),
        Binding("ctrl+d", "scroll_half(1)", "Half a page down", show=False),
        Binding("ctrl+u", "scroll_half(-1)", "Half a page up", show=False),
    )

    @dataclass
    class CopyWanted(Message):
        """Copy this reply."""

        reply: Reply

    @dataclass
    class CodeWanted(Message):
        """Copy a code block of this reply, by its number from 1."""

        reply: Reply
        number: int

    @dataclass
    class LinkWanted(Message):
        """Open what a link of a reply leads to."""

        address: str

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

    @dataclass
    class AttachmentWanted(Message):
        """Open what was sent along with a prompt."""

        attachment: Attachment

    rejected = reactive(FOLD, init=False)
    """What becomes of rejected tokens, of `app.settings.settings.REJECTED`."""
    markdown = reactive(False, init=False)
    by_round = reactive(False, init=False)
    """One round per line."""
    thoughts = reactive(False, init=False)
    """Whether the thinking of replies is shown."""

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
        self.forkable = True
        """Whether another way can be taken at a token: not in a replay, where no model is asked."""
        self._parts_of = parts_of
        self._stack = BlockStack()
        self._cursor = TokenCursor(self._stack)
        self._selection = LineSelection(self._stack)
        self._places = PlaceKeeper(self, self._stack, self._cursor)
        self._drawn = DrawnLines()
        self._maker = BlockMaker(self, lambda: self.pace)
        self._end = EndFollower(self)
        self._updates = 0
        self._behind = False
        """Whether the end has moved on since it was last brought into sight."""
        self._letters: dict[int, str] = {}
        """Shown at the beginning of these lines."""
        self._hidden = 0
        """Prompts and replies at the beginning that are not laid out yet."""
        self._left_out: frozenset[Turn] = frozenset()
        """Turns that the model was not told when it wrote the last reply."""

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

    def on_mount(self) -> None:
        """Wrap again whenever replies are to look otherwise."""
        for look in ("rejected", "markdown", "by_round", "thoughts"):
            self.watch(self, look, self._rebuild, init=False)

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

    @property
    def _parts(self) -> list[TurnOrReply]:
        """What is laid out, or about to be."""
        parts = self._parts_of(self.conversation)
        self._hidden = min(self._hidden, max(len(parts) - 2, 0))
        return parts[self._hidden :]

    def look_at(self, spot: Spot | None) -> None:
        """Select a token and bring it into sight; while one is selected, the view stays. None selects none."""
        self._cursor.select(spot)
        self.update()  # the reply of a selected token is unfolded
        self._catch_up()
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

    def letter(self, letters: str) -> dict[str, TurnOrReply]:
        """Show a letter beside each message in sight, and give what each stands for; without letters, show none."""
        height, top = self.size.height, self.scroll_offset.y
        seen = [
            (max(first, top), part)
            for part, first, end in zip(self._stack.parts, self._stack.tops, self._stack.tops[1:], strict=False)
            if first < top + height and end > top
        ]
        lettered = list(zip(letters, seen, strict=False))
        self._letters = {line: letter for letter, (line, _) in lettered}
        self.refresh()
        return {letter: part for letter, (_, part) in lettered}

    def go_to(self, part: TurnOrReply) -> None:
        """Bring a prompt or a reply to the top of the screen."""
        parts = self._parts_of(self.conversation)
        if part in parts[: self._hidden]:
            self._hidden = parts.index(part)
        self.update()
        line = self._stack.top_of(part)
        if line is not None:
            self._end.following = False
            self._catch_up()
            self.scroll_to(y=line, animate=False, immediate=True, force=True)
            self._end.following = self.is_vertical_scroll_end

    def go_to_word(self, part: TurnOrReply, found: FoundWord) -> None:
        """Bring the line where a word stands into sight, if it is not yet; its part is laid out."""
        top, number = self._stack.top_of(part), next((n for n, p in enumerate(self._stack.parts) if p is part), None)
        if top is not None and number is not None:
            line = top + line_of_word(found, self._stack.blocks[number], self._maker.styles)
            if not 0 <= line - self.scroll_offset.y < self.size.height:
                self._end.following = False
                self.scroll_to(y=max(line - self.size.height // 3, 0), animate=False, immediate=True, force=True)
                self._end.following = self.is_vertical_scroll_end

    def update(self) -> None:
        """Draw what has changed in the conversation since the last call."""
        if self._left_out != (left_out := self.conversation.left_out):
            self._left_out = left_out
            self._rebuild()
        before, place = self._stack.height, None if self._end.following else self._places.place
        if self._hidden and before > TOP and self.scroll_offset.y < NEAR * self.size.height:
            self._hidden -= 1
            place = None if place is None else place._replace(block=place.block + 1)
        changed = self._stack.update(self._parts, self._block)
        if changed is not None:
            self._refresh_seen(*changed)
            self._behind = self._behind or self._stack.height != before
            if place is not None and changed[0] <= self.scroll_offset.y and self._behind:
                self._catch_up()
                self._places.go_to(place)
        self._updates += 1
        if self._behind and self._updates % self.pace.follow_every == 0:
            self._catch_up()

    @property
    def in_sight(self) -> list[Reply]:
        """The replies of which a line is on screen, from the lowest up."""
        top, tops = self.scroll_offset.y, self._stack.tops
        seen = (n for n in range(len(self._stack.blocks)) if tops[n] < top + self.size.height and tops[n + 1] > top)
        return [part for n in reversed(list(seen)) if isinstance(part := self._stack.parts[n], Reply)]

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

        Its own way makes a new strip of each line whenever the view scrolls, and marks each segment with its place for
        the selection of text, which costs more than all else here: Textual reads those marks from `render_line` alone.
        The widget can have no border and no padding for that.
        """
        _base, background = self.background_colors
        filters = self.app.get_line_filters()
        styles, top = self._maker.styles, self.scroll_offset.y
        if self._drawn.full:
            self._drawn.clear()
            for block in self._stack.blocks:
                block.forget()
        self._drawn.use((styles, self.size.width, background, *filters))

        def draw(line: int) -> Strip:
            strip = self._line(line)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            return strip

        lines = [y + top for y in crop.line_range]
        if self.text_selection is not None or self._letters:  # marks that pass
            strips = [draw(line) for line in lines]
        else:
            strips = [self._drawn.get(self._stack.strip(line, styles), partial(draw, line)) for line in lines]
        first, last = crop.column_span
        return strips if (first, last) == (0, self.size.width) else [strip.crop(first, last) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One line of the screen, each segment marked with its place."""
        line = y + self.scroll_offset.y
        return self._line(line).apply_offsets(0, line)

    def _line(self, line: int) -> Strip:
        styles = self._maker.styles
        strip = self._stack.strip(line, styles).adjust_cell_length(self.size.width, styles.base)
        if letter := self._letters.get(line):
            strip = Strip.join([Strip([Segment(f" {letter} ", styles.cursor)]), strip.crop(3)])
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            strip = highlighted(strip, *span, self.screen.get_component_rich_style("screen--selection"))
        return strip

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with what the colours mean below them; and the width of all of them."""
        self._hidden = 0
        self.update()
        styles, width = self._maker.styles, max(self.size.width, 2)
        lines = [self._stack.strip(y, styles) for y in range(self._stack.height)]
        lines.append(legend_strip(styles))
        return [line.adjust_cell_length(width, styles.base) for line in lines], width

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, for the clipboard: as it was written, not as it is wrapped."""
        return self._selection.text(selection, self.size.width, self._maker.styles), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002 the base class names it
        """Show what is selected."""
        self.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Arrows move between tokens while one is selected; else they scroll."""
        if action in ("move", "move_line", "move_round", "fork"):
            return self.spot is not None and (self.forkable or action != "fork")
        return super().check_action(action, parameters)

    def action_scroll_half(self, pages: int) -> None:
        """Half a page down or up."""
        self.scroll_relative(y=pages * max(self.size.height // 2, 1), animate=False)

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

    def next_rejected(self) -> str:
        """Show rejected tokens the next way, after the last the first again; returns which it is."""
        self.rejected = REJECTED[(REJECTED.index(self.rejected) + 1) % len(REJECTED)]
        return self.rejected

    def action_attachment(self, identity: int, number: int) -> None:
        """A click on what was sent along with a prompt."""
        turn = next((part for part in self._stack.parts if id(part) == identity), None)
        if isinstance(turn, Turn):
            self.post_message(self.AttachmentWanted(turn.attachments[number]))

    def action_copy_reply(self, identity: int) -> None:
        """A click on the word below a reply."""
        reply = next((part for part in self._stack.parts if id(part) == identity), None)
        if isinstance(reply, Reply):
            self.post_message(self.CopyWanted(reply))

    def action_copy_code(self, identity: int, number: int) -> None:
        """A click on the word above a code block."""
        reply = next((part for part in self._stack.parts if id(part) == identity), None)
        if isinstance(reply, Reply):
            self.post_message(self.CodeWanted(reply, number))

    def action_open_link(self, address: str) -> None:
        """A click on a link."""
        self.post_message(self.LinkWanted(address))

    def on_click(self, event: Click) -> None:
        """Select the token that was clicked on, or unfold a stretch; not at the end of a selection of text."""
        line, column = int(event.y) + self.scroll_offset.y, int(event.x)
        if self.text_selection is not None:
            return
        if self._stack.unfold(line, column):
            self.update()
            self._catch_up()
        else:
            self._tell(self._cursor.at(line, column))

    def notify_style_update(self) -> None:
        """Another theme: resolve the styles and draw everything again."""
        super().notify_style_update()
        self._maker.forget_styles()
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

    @property
    def _width(self) -> int:
        return min((self.scrollable_content_region.width or 80) - 1, LINE_WIDTH)

    def _rebuild(self) -> None:
        """Make all blocks anew; what was at the top of the screen stays there."""
        place = None if self._end.following else self._places.place
        if self._end.following:
            self._hidden = self._last_parts()
        self._stack.clear()
        self.update()
        self.refresh()
        self._catch_up()
        if place is not None:
            self._places.go_to(place)

    def _block(self, part: TurnOrReply) -> Block:
        block = self._maker.make(
            part,
            self._width,
            self.spot,
            rejected=self.rejected,
            markdown=self.markdown,
            by_round=self.by_round,
            thoughts=self.thoughts,
        )
        if self._left_out:
            mark_untold(block, part, self.conversation.turns, self._left_out)
        return block

    def _tell(self, spot: Spot | None) -> None:
        if spot is not None:
            self.post_message(self.TokenSelected(spot))
