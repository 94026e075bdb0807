"""The conversation on screen: a line-API widget that draws what is visible and, while a reply grows, its last lines."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import Selection
from textual.strip import Strip

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import FOLD, REJECTED
from specchat.app.ui.keys import named
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.block import Block, TurnOrReply
from specchat.app.ui.rendering.block_stack import TOP, BlockStack, PartsOf, ShownParts, all_parts
from specchat.app.ui.rendering.found_line import FoundWord, line_of_word
from specchat.app.ui.rendering.line_painter import BlockMaker, LinePainter
from specchat.app.ui.rendering.line_selection import SELECTION_KEYS, LineSelection
from specchat.app.ui.rendering.styles import PART_CLASSES, TOKEN_CLASSES
from specchat.app.ui.rendering.token_cursor import TOKEN_KEYS, Spot, TokenCursor
from specchat.app.ui.rendering.viewport import EndFollower, PlaceKeeper
from specchat.app.ui.textual_internals import VerticalBar
from specchat.app.ui.widgets.transcript_messages import ForkRequested, LinkRequested, TokenSelected, requested_message

NEAR = 3
"""What is above is laid out with each frame once one has scrolled to within so many screens of it."""
LINE_WIDTH = 104
"""Longer lines are hard to read."""


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
        self._shown = ShownParts(parts_of)
        self._stack = BlockStack()
        self._cursor = TokenCursor(self._stack)
        self._selection = LineSelection(self._stack)
        self._places = PlaceKeeper(self, self._stack, self._cursor)
        self._maker = BlockMaker(self, lambda: self.pace)
        self._painter = LinePainter(self, self._stack, self._maker)
        self._end = EndFollower(self)
        self._updates = 0
        self._behind = False
        """Whether the end has moved on since it was last brought into sight."""
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
        return self._painter.letter(letters)

    def go_to(self, part: TurnOrReply) -> None:
        """Bring a prompt or a reply to the top of the screen."""
        self._shown.reach(self.conversation, part)
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
        if self._shown.hidden and before > TOP and self.scroll_offset.y < NEAR * self.size.height:
            self._shown.hidden -= 1
            place = None if place is None else place._replace(block=place.block + 1)
        changed = self._stack.update(self._shown.of(self.conversation), self._block)
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
        """The lines of a part of the screen, not marked with their places."""
        return self._painter.lines(crop)

    def render_line(self, y: int) -> Strip:
        """One line of the screen, each segment marked with its place."""
        line = y + self.scroll_offset.y
        return self._painter.line(line).apply_offsets(0, line)

    def all_lines(self) -> tuple[list[Strip], int]:
        """Every line, on screen or not, with what the colours mean below them; and the width of all of them."""
        self._shown.hidden = 0
        self.update()
        return self._painter.all_lines()

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
            self.post_message(ForkRequested(self.spot))

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

    def action_request(self, name: str, identity: int, details: tuple[Any, ...] = ()) -> None:
        """A click on a mark of a prompt or a reply, of `transcript_messages.requested_message`."""
        message = requested_message(self._stack.parts, name, identity, details)
        if message is not None:
            self.post_message(message)

    def action_open_link(self, address: str) -> None:
        """A click on a link."""
        self.post_message(LinkRequested(address))

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
            self._shown.hide_above_end(self.conversation)
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
            block.mark_left_out(part, self.conversation.turns, self._left_out)
        return block

    def _tell(self, spot: Spot | None) -> None:
        if spot is not None:
            self.post_message(TokenSelected(spot))
