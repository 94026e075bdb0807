"""The conversation on screen, as a line-API widget: only visible lines are drawn, of a growing reply the last ones."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.selection import Selection
from textual.strip import Strip

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import FOLD, REJECTED
from specchat.app.ui.keys import named
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.block import Block, Look, TurnOrReply
from specchat.app.ui.rendering.block_stack import TOP, BlockStack, PartsOf, ShownParts, all_parts
from specchat.app.ui.rendering.found_line import FoundWord, line_of_word
from specchat.app.ui.rendering.line_painter import BlockMaker, LinePainter
from specchat.app.ui.rendering.line_selection import LineSelection
from specchat.app.ui.rendering.styles import PART_CLASSES, TOKEN_CLASSES
from specchat.app.ui.rendering.token_cursor import TRANSCRIPT_KEYS, Spot, TokenCursor
from specchat.app.ui.rendering.viewport import Viewport
from specchat.app.ui.textual_internals import BarredScrollView
from specchat.app.ui.widgets.transcript_messages import ForkRequested, LinkRequested, TokenSelected, requested_message

NEAR = 3
"""Earlier messages get a block per frame once the view is within this many screens of them."""
LINE_WIDTH = 104
"""Longer lines are hard to read."""


class Transcript(BarredScrollView, can_focus=True):
    """A conversation, as tokens or as Markdown. Follows the end unless scrolled up."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | PART_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = named(
        "transcript",
        *TRANSCRIPT_KEYS,
    )

    rejected = reactive(FOLD, init=False)
    """How finished replies show rejected drafts: one of `app.settings.settings.REJECTED`."""
    markdown = reactive(False, init=False)
    by_round = reactive(False, init=False)
    """One round per line."""
    thoughts = reactive(False, init=False)
    """Whether the thinking of replies is unfolded."""

    def __init__(self, conversation: Conversation, parts_of: PartsOf = all_parts, **options: Any) -> None:
        """Create the view of a conversation; `parts_of` selects the prompts and replies, from top to bottom."""
        super().__init__(**options)
        self.conversation = conversation
        self.pace = Pace()
        self.forkable = True
        """Whether the reply can be continued from a token: not in a replay, which has no model."""
        self._shown = ShownParts(parts_of)
        self._stack = BlockStack()
        self._cursor = TokenCursor(self._stack)
        self._selection = LineSelection(self._stack)
        self._viewport = Viewport(self, self._stack, self._cursor)
        self._maker = BlockMaker(self, lambda: self.pace)
        self._painter = LinePainter(self, self._stack, self._maker)
        self._updates = 0
        self._grown = False
        """Whether the height has changed since the last scrolling."""
        self._left_out: frozenset[Turn] = frozenset()
        """Turns that did not fit into the context of the last reply."""

    @property
    def spot(self) -> Spot | None:
        """The selected token."""
        return self._cursor.spot

    def on_mount(self) -> None:
        """Wrap again when one of the display options changes."""
        for look in ("rejected", "markdown", "by_round", "thoughts"):
            self.watch(self, look, self._rebuild, init=False)

    def show(self, conversation: Conversation) -> None:
        """Show another conversation, from its end."""
        self.conversation = conversation
        self._cursor.spot = None
        self._viewport.following = True
        self._rebuild()

    def look_at(self, spot: Spot | None) -> None:
        """Select a token and scroll to it; until then the view stays. None selects no token."""
        self._cursor.select(spot)
        self.update()  # the reply of a selected token is unfolded
        self._catch_up()
        self.refresh()
        if self._cursor.line is not None:
            self._viewport.show_line(self._cursor.line, share=2)
        self._viewport.following = spot is None and self.is_vertical_scroll_end

    def last_spot(self) -> Spot | None:
        """The last visible token."""
        return self._cursor.last()

    def follow(self) -> None:
        """Show the end, and keep it visible."""
        self._viewport.following = True
        self._viewport.keep_end()

    def letter(self, letters: str) -> dict[str, TurnOrReply]:
        """Mark each visible message with a letter, and return the messages by letter; "" removes the letters."""
        return self._painter.letter(letters)

    def go_to(self, part: TurnOrReply) -> None:
        """Scroll a prompt or a reply to the top of the view."""
        self._shown.reach(self.conversation, part)
        self.update()
        line = self._stack.top_of(part)
        if line is not None:
            self._viewport.following = False
            self._catch_up()
            self._viewport.jump(line)

    def go_to_word(self, part: TurnOrReply, found: FoundWord) -> None:
        """Scroll to the line of a word in a part that already has a block."""
        top = self._stack.top_of(part)
        if top is not None:
            block = self._stack.blocks[self._stack.parts.index(part)]
            self._viewport.show_line(top + line_of_word(found, block, self._maker.styles), share=3)

    def update(self) -> None:
        """Draw the changes of the conversation since the last call."""
        if self._left_out != (left_out := self.conversation.left_out):
            self._left_out = left_out
            self._rebuild()
        before, place = self._stack.height, None if self._viewport.following else self._viewport.place
        if self._shown.hidden and before > TOP and self.scroll_offset.y < NEAR * self.size.height:
            self._shown.hidden -= 1
            place = None if place is None else place._replace(block=place.block + 1)
        changed = self._stack.update(self._shown.of(self.conversation), self._block)
        if changed is not None:
            self._viewport.refresh(*changed)
            self._grown = self._grown or self._stack.height != before
            if place is not None and changed[0] <= self.scroll_offset.y and self._grown:
                self._catch_up()
                self._viewport.restore(place)
        self._updates += 1
        if self._grown and self._updates % self.pace.follow_every == 0:
            self._catch_up()

    @property
    def in_sight(self) -> list[Reply]:
        """The replies with a visible line, from bottom to top."""
        visible = self._stack.parts_between(self.scroll_offset.y, self.scroll_offset.y + self.size.height)
        return [part for _, part in reversed(visible) if isinstance(part, Reply)]

    def _catch_up(self) -> None:
        """Update the scrollable height, and keep the end visible."""
        self._grown = False
        self._viewport.grow(Size(self._width, self._stack.height))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of the screen, without offsets for text selection."""
        return self._painter.lines(crop)

    def render_line(self, y: int) -> Strip:
        """One line of the screen, with the offsets that text selection needs."""
        line = y + self.scroll_offset.y
        return self._painter.line(line).apply_offsets(0, line)

    def all_lines(self) -> tuple[list[Strip], int]:
        """All lines with a legend below them, and their width."""
        self._shown.hidden = 0
        self.update()
        return self._painter.all_lines()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, for the clipboard, without the line ends of wrapping."""
        return self._selection.text(selection, self.size.width, self._maker.styles), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002 the base class names it
        """Draw the selection."""
        self.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Arrow keys move between tokens while one is selected; otherwise they scroll."""
        if action in ("move", "fork"):
            return self.spot is not None and (self.forkable or action != "fork")
        return super().check_action(action, parameters)

    def action_scroll_half(self, pages: int) -> None:
        """Half a page down or up."""
        self.scroll_relative(y=pages * max(self.size.height // 2, 1), animate=False)

    def action_move(self, step: int, by: str = "token") -> None:
        """Select the next (step 1) or previous (-1) token, line or round."""
        moves = {"token": self._cursor.neighbour, "line": self._cursor.vertical, "round": self._cursor.round}
        self._post_selected(moves[by](step))

    def action_fork(self) -> None:
        """Continue differently from the selected token."""
        if self.spot is not None:
            self.post_message(ForkRequested(self.spot))

    def action_select_lines(self, by: int) -> None:
        """Select the last visible line (going down: the first), then one more per call."""
        self._selection.extend(self, by)

    def next_rejected(self) -> str:
        """Switch to the next of `REJECTED`, and return it."""
        self.rejected = REJECTED[(REJECTED.index(self.rejected) + 1) % len(REJECTED)]
        return self.rejected

    def action_request(self, name: str, identity: int, details: tuple[Any, ...] = ()) -> None:
        """A click on a mark of a prompt or a reply; see `transcript_messages.requested_message`."""
        message = requested_message(self._stack.parts, name, identity, details)
        if message is not None:
            self.post_message(message)

    def action_open_link(self, address: str) -> None:
        """A click on a link."""
        self.post_message(LinkRequested(address))

    def on_click(self, event: Click) -> None:
        """Select the clicked token, or unfold the clicked mark; ignored at the end of a text selection."""
        line, column = int(event.y) + self.scroll_offset.y, int(event.x)
        if self.text_selection is not None:
            return
        if self._stack.unfold(line, column):
            self.update()
            self._catch_up()
        else:
            self._post_selected(self._cursor.at(line, column))

    def notify_style_update(self) -> None:
        """Resolve the styles of a new theme and redraw everything."""
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
        self._viewport.keep_end()
        if self.spot is not None:
            self.look_at(self.spot)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end if the user scrolls to it; stop if away from it."""
        super().watch_scroll_y(old_value, new_value)
        self._viewport.on_scrolled()

    @property
    def _width(self) -> int:
        return min((self.scrollable_content_region.width or 80) - 1, LINE_WIDTH)

    def _rebuild(self) -> None:
        """Create all blocks again; the scroll position keeps its content."""
        place = None if self._viewport.following else self._viewport.place
        if self._viewport.following:
            self._shown.hide_above_end(self.conversation)
        self._stack.clear()
        self.update()
        self.refresh()
        self._catch_up()
        if place is not None:
            self._viewport.restore(place)

    def _block(self, part: TurnOrReply) -> Block:
        look = Look(self.rejected, self.markdown, self.by_round, self.thoughts)
        block = self._maker.make(part, self._width, self.spot, look)
        if self._left_out:
            block.mark_left_out(part, self.conversation.turns, self._left_out)
        return block

    def _post_selected(self, spot: Spot | None) -> None:
        if spot is not None:
            self.post_message(TokenSelected(spot))
