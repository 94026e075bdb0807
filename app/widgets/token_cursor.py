"""Moving through the tokens of a transcript, by key and by mouse: which one is looked at."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message
from textual.scroll_view import ScrollView

from app.reply import Reply
from app.widgets.blocks import Block, ReplyBlock


@dataclass(frozen=True, slots=True)
class Spot:
    """A token of a reply, by the numbers of `Reply.starts`."""

    reply: Reply
    token: int


class TokenCursor(ScrollView):
    """The part of `Transcript` that knows which token is looked at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "token before", show=False),
        Binding("right", "move(1)", "token after", show=False),
        Binding("up", "move_line(-1)", "line above", show=False),
        Binding("down", "move_line(1)", "line below", show=False),
        Binding("ctrl+left,b", "move_round(-1)", "round before", show=False),
        Binding("ctrl+right,w", "move_round(1)", "round after", show=False),
    ]

    _blocks: list[Block]
    _tops: list[int]
    spot: Spot | None = None
    """The token that is looked at."""

    @dataclass
    class Looked(Message):
        """The user looks at this token."""

        spot: Spot

    def look_at(self, spot: Spot | None, *, scroll: bool = True) -> None:
        """Mark a token and bring it into sight; None looks at nothing."""
        before, self.spot = self.spot, spot
        for block in self._blocks:
            if isinstance(block, ReplyBlock):
                if spot is not None and block.reply is spot.reply:
                    block.select(spot.token)
                elif before is not None and block.reply is before.reply:
                    block.select(None)
        self.refresh()
        line = self._line_of(spot) if spot is not None else None
        if line is not None and scroll:
            height, top = self.size.height, self.scroll_offset.y
            if not top <= line < top + height:
                target = line - height // 2
                self.scroll_to(y=max(target, 0), animate=False, immediate=True, force=True)

    def last_spot(self) -> Spot | None:
        """The last token that is shown."""
        for block in reversed(self._replies()):
            token = self._shown_token(block, block.reply.tokens - 1, -1)
            if token is not None:
                return Spot(block.reply, token)
        return None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Arrows move between tokens while one is looked at; else they scroll."""
        if action in ("move", "move_line", "move_round"):
            return self.spot is not None
        return super().check_action(action, parameters)

    def action_move(self, step: int) -> None:
        """To the next token that is shown, or to the one before."""
        place = self._place()
        if place is None or self.spot is None:
            return
        block = self._replies()[place]
        token = self._shown_token(block, self.spot.token + step, step)
        while token is None and 0 <= place + step < len(self._replies()):
            place += step
            block = self._replies()[place]
            token = self._shown_token(block, 0 if step > 0 else block.reply.tokens - 1, step)
        self._tell(block, token)

    def action_move_round(self, step: int) -> None:
        """To the first token of the next round, or of the one before."""
        place = self._place()
        if place is None or self.spot is None:
            return
        block, reply = self._replies()[place], self.spot.reply
        index = reply.round_of(self.spot.token) + step
        if 0 <= index < len(reply.rounds):
            self._tell(block, self._shown_token(block, reply.starts[index], 1))

    def action_move_line(self, step: int) -> None:
        """To the nearest token on the line above or below."""
        line = self._line_of(self.spot) if self.spot is not None else None
        place = self._place()
        if line is None or place is None or self.spot is None:
            return
        own = self._replies()[place]
        column = own.column_of(self.spot.token, line - self._tops[self._blocks.index(own)])
        line += step
        while 0 <= line < self._tops[-1]:
            number = bisect_right(self._tops, line) - 1
            block = self._blocks[number] if 0 <= number < len(self._blocks) else None
            token = (
                block.token_at(line - self._tops[number], column, nearest=True)
                if isinstance(block, ReplyBlock)
                else None
            )
            if isinstance(block, ReplyBlock) and token is not None and token != self.spot.token:
                self._tell(block, token)
                return
            line += step

    def on_click(self, event: Click) -> None:
        """Look at the token that was clicked on; not at the end of a selection."""
        if self.text_selection is not None:
            return
        line = int(event.y) + self.scroll_offset.y
        number = bisect_right(self._tops, line) - 1
        if 0 <= number < len(self._blocks):
            block = self._blocks[number]
            if isinstance(block, ReplyBlock):
                self._tell(block, block.token_at(line - self._tops[number], int(event.x)))

    def _tell(self, block: ReplyBlock, token: int | None) -> None:
        if token is not None:
            self.post_message(self.Looked(Spot(block.reply, token)))

    def _replies(self) -> list[ReplyBlock]:
        return [block for block in self._blocks if isinstance(block, ReplyBlock)]

    def _place(self) -> int | None:
        """Which of the replies is looked at."""
        spot = self.spot
        if spot is None:
            return None
        return next((i for i, block in enumerate(self._replies()) if block.reply is spot.reply), None)

    def _line_of(self, spot: Spot) -> int | None:
        for number, block in enumerate(self._blocks):
            if isinstance(block, ReplyBlock) and block.reply is spot.reply and number < len(self._tops):
                line = block.line_of(spot.token)
                return None if line is None else self._tops[number] + line
        return None

    @staticmethod
    def _shown_token(block: ReplyBlock, token: int, step: int) -> int | None:
        """This token or, where it is not shown, the next in this direction that is."""
        while 0 <= token < block.reply.tokens:
            if block.line_of(token) is not None:
                return token
            token += step
        return None
