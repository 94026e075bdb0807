"""The conversation on screen, as a line-API widget: only visible lines are drawn, of a growing reply the last ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.selection import Selection
from textual.strip import Strip

from specchat.app.chat.conversation import Conversation, Prompt
from specchat.app.chat.reply import Reply
from specchat.app.settings.settings import FOLD, REJECTED
from specchat.app.ui.keys import registered
from specchat.app.ui.pump import Pace
from specchat.app.ui.rendering.block import INDENT, Block, Look, PromptBlock, TurnOrReply
from specchat.app.ui.rendering.block_stack import TOP, BlockStack, FoundWord, line_of_word, selected_text
from specchat.app.ui.rendering.line_painter import LinePainter
from specchat.app.ui.rendering.live_markdown import markdown_of
from specchat.app.ui.rendering.reply_block import ReplyBlock
from specchat.app.ui.rendering.styles import PART_CLASSES, TOKEN_CLASSES
from specchat.app.ui.rendering.token_cursor import Spot, TokenCursor
from specchat.app.ui.rendering.viewport import Viewport
from specchat.app.ui.textual_internals import BarredScrollView

NEAR = 3
"""Earlier messages get a block per frame once the view is within this many screens of them."""
LINE_WIDTH = 88
"""Longer lines are hard to read."""
FIRST_CHARACTERS = 12_000
"""A chat is opened with its last prompts and replies of this length, which fill a few screens."""

PartsOf = Callable[[Conversation], list[TurnOrReply]]


def all_parts(conversation: Conversation) -> list[TurnOrReply]:
    """Every prompt and the reply to it, from top to bottom."""
    return [part for prompt in conversation.prompts for _, part in prompt.named_parts]


def hidden_at_first(parts: list[TurnOrReply]) -> int:
    """How many prompts and replies are above the end that a chat is opened with."""
    room, hidden = FIRST_CHARACTERS, len(parts)
    while hidden and room > 0:
        hidden -= 1
        room -= 200 + len(parts[hidden].text)
    return hidden


@dataclass
class TokenSelected(Message, namespace="transcript"):
    """The user selected this token, by key or by mouse."""

    spot: Spot


@dataclass
class Requested(Message, namespace="transcript"):
    """A click on a mark, or a key, asks the app for something."""

    what: str
    """The request: for a prompt "version" (details: whether of its reply, a step) or "attachment" (its place); for a
    reply "copy", "continue", "penalise" or "code" (its number from 1); for a token "fork"; for an address "link"."""
    about: Any
    """The prompt, reply, spot or address."""
    details: tuple[Any, ...] = ()


_KEYS = (
    Binding("enter", "fork", "fork here", key_display="enter"),
    Binding("left", "move(-1)", "token before", show=False),
    Binding("right", "move(1)", "token after", show=False),
    Binding("up", "move(-1, 'line')", "line above", show=False),
    Binding("down", "move(1, 'line')", "line below", show=False),
    Binding("ctrl+left,b", "move(-1, 'round')", "round before", show=False),
    Binding("ctrl+right,w", "move(1, 'round')", "round after", show=False),
    Binding("shift+up", "select_lines(-1)", "Select line above", show=False),
    Binding("shift+down", "select_lines(1)", "Select line below", show=False),
    Binding("home,g", "scroll_home", "First line", show=False),
    Binding("end,G,shift+g", "scroll_end", "Last line", show=False),
    Binding("j", "scroll_down", "Scroll down", show=False),
    Binding("k", "scroll_up", "Scroll up", show=False),
    Binding("ctrl+d", "scroll_half(1)", "Half a page down", show=False),
    Binding("ctrl+u", "scroll_half(-1)", "Half a page up", show=False),
)


class Transcript(BarredScrollView, can_focus=True):
    """A conversation, as tokens or as Markdown. Follows the end unless scrolled up."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = TOKEN_CLASSES | PART_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = registered("transcript", *_KEYS)

    rejected = reactive(FOLD, init=False)
    """How finished replies show rejected drafts: one of `app.settings.settings.REJECTED`."""
    markdown = reactive(False, init=False)
    by_round = reactive(False, init=False)
    """One round per line."""
    thoughts = reactive(False, init=False)
    """Whether the thinking of replies is unfolded."""
    drafts = reactive(True, init=False)
    """Whether growing replies show rejected drafts that are folded later."""

    def __init__(self, conversation: Conversation, parts_of: PartsOf = all_parts, **options: Any) -> None:
        """Create the view of a conversation; `parts_of` selects the prompts and replies, from top to bottom."""
        super().__init__(**options)
        self.conversation = conversation
        self.pace = Pace()
        self.forkable = True
        """Whether replies can be continued: not in a replay, which has no model, a lane or a candidate."""
        self._parts_of = parts_of
        self._hidden = 0
        """Prompts and replies at the beginning that have no block yet."""
        self._stack = BlockStack()
        self._cursor = TokenCursor(self._stack)
        self._viewport = Viewport(self, self._stack, self._cursor)
        self.painter = LinePainter(self, self._stack)
        self._updates = 0
        self._grown = False
        """Whether the height has changed since the last scrolling."""
        self._left_out: frozenset[Prompt] = frozenset()
        """Prompts that did not fit, with their replies, into the context of the last reply."""

    @property
    def spot(self) -> Spot | None:
        """The selected token."""
        return self._cursor.spot

    def on_mount(self) -> None:
        """Wrap again when one of the display options changes."""
        for look in ("rejected", "markdown", "by_round", "thoughts", "drafts"):
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
        self.painter.forget()
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

    def go_to(self, part: TurnOrReply, found: FoundWord | None = None) -> None:
        """Scroll a prompt or a reply to the top of the view, or only to the line of a word in it."""
        parts = self._parts_of(self.conversation)
        if part in parts[: self._hidden]:
            self._hidden = parts.index(part)
        self.update()
        if (shown := self._stack.block_of(part)) is None:
            return
        top, block = shown
        if found is not None:
            self._viewport.show_line(top + line_of_word(found, block, self.painter.styles), share=3)
        else:
            self._viewport.following = False
            self._catch_up()
            self._viewport.jump(top)

    def update(self) -> None:
        """Draw the changes of the conversation since the last call."""
        if self._left_out != (left_out := self.conversation.left_out):
            self._left_out = left_out
            self._rebuild()
        before, place = self._stack.height, None if self._viewport.following else self._viewport.place
        parts = self._parts_of(self.conversation)
        near = before > TOP and self.scroll_offset.y < NEAR * self.size.height
        self._hidden = max(min(self._hidden - near, len(parts) - 2), 0)
        changed = self._stack.update(parts[self._hidden :], self._block)
        if changed is not None:
            self.painter.forget(changed[0])
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
        return self.painter.lines(crop)

    def render_line(self, y: int) -> Strip:
        """One line of the screen, with the offsets that text selection needs."""
        line = y + self.scroll_offset.y
        return self.painter.line(line).apply_offsets(0, line)

    def all_lines(self) -> tuple[list[Strip], int]:
        """All lines with a legend below them, and their width."""
        self._hidden = 0
        self.update()
        return self.painter.all_lines()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, for the clipboard, without the line ends of wrapping."""
        return selected_text(self._stack, selection, self.size.width, self.painter.styles), "\n"

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
            self.post_message(Requested("fork", self.spot))

    def action_select_lines(self, by: int) -> None:
        """Select the last visible line (going down: the first), then one more per call."""
        self._viewport.select_lines(by)

    def next_rejected(self) -> str:
        """Switch to the next of `REJECTED`, and return it."""
        self.rejected = REJECTED[(REJECTED.index(self.rejected) + 1) % len(REJECTED)]
        return self.rejected

    def action_request(self, what: str, identity: int, details: tuple[Any, ...] = ()) -> None:
        """A click on a mark of the prompt or the reply with this `id`, if it is still shown."""
        for part in self._stack.parts:
            if id(part) == identity:
                self.post_message(Requested(what, part, details))

    def action_open_link(self, address: str) -> None:
        """A click on a link."""
        self.post_message(Requested("link", address))

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
        self.painter.forget_styles()
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
        if place is None:
            self._hidden = hidden_at_first(self._parts_of(self.conversation))
        self._stack.clear()
        self.update()
        self.refresh()
        self._catch_up()
        if place is not None:
            self._viewport.restore(place)

    def _block(self, part: TurnOrReply) -> Block:
        block: Block
        if isinstance(part, Prompt):
            block = PromptBlock(part, self._width, opened=self.thoughts)
        else:
            markdown = None
            if self.markdown:
                markdown = markdown_of(part, self.app, self.pace, self._width - INDENT, self.painter.styles)
            look = Look(self.rejected, self.markdown, self.by_round, self.thoughts, self.drafts, self.forkable)
            block = ReplyBlock(part, self._width, look, markdown)
            if self.spot is not None and part is self.spot.reply:
                block.select(self.spot.token)
        if self._left_out:
            block.mark_left_out(part, self.conversation.prompts, self._left_out)
        return block

    def _post_selected(self, spot: Spot | None) -> None:
        if spot is not None:
            self.post_message(TokenSelected(spot))
