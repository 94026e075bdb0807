"""The selected token of a transcript, and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.reply_block import ReplyBlock

TRANSCRIPT_KEYS = (
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


@dataclass(frozen=True, slots=True)
class Spot:
    """A token of a reply, by the numbers of `Reply.starts`."""

    reply: Reply
    token: int


class TokenCursor:
    """The selected token of a transcript. The methods that return a `Spot` do not move the cursor."""

    def __init__(self, stack: BlockStack) -> None:
        self.spot: Spot | None = None
        """The selected token, if any."""
        self._stack = stack

    @property
    def line(self) -> int | None:
        """The line of the selected token; None without a visible one."""
        return None if self.spot is None else self._stack.line_of(self.spot.reply, self.spot.token)

    def line_of(self, spot: Spot) -> int | None:
        """The line of a token, or of the last visible one before it."""
        for block in self._stack.replies:
            if block.reply is spot.reply:
                token = _shown_token(block, spot.token, -1)
                return None if token is None else self._stack.line_of(spot.reply, token)
        return None

    def select(self, spot: Spot | None) -> None:
        """Select a token; None selects no token."""
        before, self.spot = self.spot, spot
        for block in self._stack.replies:
            if spot is not None and block.reply is spot.reply:
                block.select(spot.token)
            elif before is not None and block.reply is before.reply:
                block.select(None)

    def last(self) -> Spot | None:
        """The last visible tested token of the last reply with tokens; without any, its last visible token."""
        for block in reversed(self._stack.replies):
            last = token = _shown_token(block, block.reply.tokens - 1, -1)
            while token is not None:
                record, found = block.reply.token(token)
                if found.place < record.tested:
                    return Spot(block.reply, token)
                token = _shown_token(block, token - 1, -1)
            if last is not None:
                return Spot(block.reply, last)
        return None

    def neighbour(self, step: int) -> Spot | None:
        """The next visible token (step 1) or the previous one (step -1)."""
        place = self._place()
        if place is None or self.spot is None:
            return None
        replies = self._stack.replies
        block = replies[place]
        token = _shown_token(block, self.spot.token + step, step)
        while token is None and 0 <= place + step < len(replies):
            place += step
            block = replies[place]
            token = _shown_token(block, 0 if step > 0 else block.reply.tokens - 1, step)
        return None if token is None else Spot(block.reply, token)

    def round(self, step: int) -> Spot | None:
        """The first token of the next round (step 1) or of the previous one (step -1)."""
        place = self._place()
        if place is None or self.spot is None:
            return None
        reply = self.spot.reply
        index = reply.round_of(self.spot.token) + step
        if not 0 <= index < len(reply.rounds):
            return None
        token = _shown_token(self._stack.replies[place], reply.starts[index], 1)
        return None if token is None else Spot(reply, token)

    def vertical(self, step: int) -> Spot | None:
        """The nearest token on a line below (step 1) or above (step -1)."""
        line, place = self.line, self._place()
        if line is None or place is None or self.spot is None:
            return None
        own = self._stack.replies[place]
        column = own.column_of(self.spot.token, line - self._stack.tops[self._stack.blocks.index(own)])
        line += step
        while 0 <= line < self._stack.height:
            spot = self.at(line, column, nearest=True)
            if spot is not None and spot.token != self.spot.token:
                return spot
            line += step
        return None

    def at(self, line: int, column: int, *, nearest: bool = False) -> Spot | None:
        """The token in this cell; with `nearest`, otherwise the last one before it on the line."""
        number = self._stack.number_at(line)
        block = None if number is None else self._stack.blocks[number]
        if number is None or not isinstance(block, ReplyBlock):
            return None
        token = block.token_at(line - self._stack.tops[number], column, nearest=nearest)
        return None if token is None else Spot(block.reply, token)

    def _place(self) -> int | None:
        """Index of the reply with the selected token."""
        spot = self.spot
        if spot is None:
            return None
        return next((i for i, block in enumerate(self._stack.replies) if block.reply is spot.reply), None)


def _shown_token(block: ReplyBlock, token: int, step: int) -> int | None:
    """This token, or the next visible one in this direction."""
    while 0 <= token < block.reply.tokens:
        if block.line_of(token) is not None:
            return token
        token += step
    return None
