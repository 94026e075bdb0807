"""The selected token of a transcript, and its neighbours."""

from dataclasses import dataclass
from itertools import dropwhile

from specchat.app.chat.reply import Reply
from specchat.app.ui.rendering.block_stack import BlockStack
from specchat.app.ui.rendering.reply_block import ReplyBlock


@dataclass(frozen=True, slots=True)
class Spot:
    """A token of a reply, by the numbers of `Reply.starts`."""

    reply: Reply
    token: int

    @property
    def tested(self) -> bool:
        """Whether the target tested the token."""
        record, found = self.reply.token(self.token)
        return found.place < record.tested


class TokenCursor:
    """The selected token of a transcript. The methods that return a `Spot` do not move the cursor."""

    def __init__(self, stack: BlockStack) -> None:
        self.spot: Spot | None = None
        """The selected token, if any."""
        self._stack = stack

    @property
    def line(self) -> int | None:
        """The line of the selected token; None without a visible one."""
        if self.spot is None or (found := self._stack.reply_block(self.spot.reply)) is None:
            return None
        top, block = found
        line = block.line_of(self.spot.token)
        return None if line is None else top + line

    def line_of(self, spot: Spot) -> int | None:
        """The line of a token, or of the last visible one before it."""
        if (found := self._stack.reply_block(spot.reply)) is None:
            return None
        top, block = found
        token = _nearest(block, spot.token, -1)
        return None if token is None else top + (block.line_of(token) or 0)

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
            if spots := [Spot(block.reply, token) for token in reversed(block.visible_tokens)]:
                return next((spot for spot in spots if spot.tested), spots[0])
        return None

    def neighbour(self, step: int) -> Spot | None:
        """The next visible token (step 1) or the previous one (step -1)."""
        spot = self.spot
        for block in dropwhile(
            lambda block: spot is None or block.reply is not spot.reply, self._stack.replies[::step]
        ):
            if spot is not None and block.reply is spot.reply:
                token = _nearest(block, spot.token + step, step)
            else:
                token = next(iter(block.visible_tokens[::step]), None)
            if token is not None:
                return Spot(block.reply, token)
        return None

    def round(self, step: int) -> Spot | None:
        """The first token of the next round (step 1) or of the previous one (step -1)."""
        if self.spot is None or (found := self._stack.reply_block(self.spot.reply)) is None:
            return None
        reply = self.spot.reply
        index = reply.round_of(self.spot.token) + step
        if not 0 <= index < len(reply.rounds):
            return None
        token = _nearest(found[1], reply.starts[index], 1)
        return None if token is None else Spot(reply, token)

    def vertical(self, step: int) -> Spot | None:
        """The nearest token on a line below (step 1) or above (step -1)."""
        line = self.line
        if self.spot is None or line is None or (found := self._stack.reply_block(self.spot.reply)) is None:
            return None
        top, own = found
        column = own.column_of(self.spot.token, line - top)
        for other in range(line + 1, self._stack.height) if step > 0 else range(line - 1, -1, -1):
            spot = self.at(other, column, nearest=True)
            if spot is not None and spot.token != self.spot.token:
                return spot
        return None

    def at(self, line: int, column: int, *, nearest: bool = False) -> Spot | None:
        """The token in this cell; with `nearest`, otherwise the last one before it on the line."""
        top, block = self._stack.block_at(line)
        if not isinstance(block, ReplyBlock):
            return None
        token = block.token_at(line - top, column, nearest=nearest)
        return None if token is None else Spot(block.reply, token)


def _nearest(block: ReplyBlock, token: int, step: int) -> int | None:
    """This token, or the next visible one in this direction."""
    return next((other for other in block.visible_tokens[::step] if (other - token) * step >= 0), None)
