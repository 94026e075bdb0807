"""The blocks of a transcript from top to bottom, with the first line of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from textual.strip import Strip

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Reply
from specchat.app.chat.turn import Turn
from specchat.app.ui.rendering.block import Block, TurnOrReply
from specchat.app.ui.rendering.reply_block import ReplyBlock
from specchat.app.ui.rendering.styles import TranscriptStyles

TOP = 1
"""Empty lines above the first block."""
EMPTY = Strip([])
"""A line where there is no block."""


def all_parts(conversation: Conversation) -> list[TurnOrReply]:
    """Every prompt and the reply to it, from top to bottom."""
    parts: list[TurnOrReply] = []
    for turn in conversation.turns:
        parts.append(turn)
        if turn.reply is not None:
            parts.append(turn.reply)
    return parts


class BlockStack:
    """Blocks below each other. Lines are numbered from 0, through all blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.tops: list[int] = [TOP]
        """The first line of each block as of the last `update`, then the number of all lines."""
        self.parts: list[TurnOrReply] = []
        """The turn or reply that each block shows."""

    @property
    def height(self) -> int:
        """Lines in all."""
        return self.tops[-1]

    @property
    def replies(self) -> list[ReplyBlock]:
        """The blocks that are replies, in order."""
        return [block for block in self.blocks if isinstance(block, ReplyBlock)]

    def clear(self) -> None:
        """Remove every block."""
        self.blocks, self.parts, self.tops = [], [], [TOP]

    def update(self, parts: Sequence[TurnOrReply], make: Callable[[TurnOrReply], Block]) -> tuple[int, int] | None:
        """Update the blocks of the parts.

        Args:
            parts: What there is to show, from top to bottom.
            make: Makes the block of a part that has none.

        Returns:
            The first changed line and the line after the last one; None without a change.
        """
        dirty = self._sync(list(parts), make)
        for number, block in enumerate(self.blocks):
            changed = block.update()
            if changed is not None and number < len(self.tops):  # blocks without a line yet lie below what is dirty
                line = self.tops[number] + changed
                dirty = line if dirty is None else min(dirty, line)
        if dirty is None:
            return None
        before = self.height
        self.tops = list(accumulate((block.height for block in self.blocks), initial=TOP))
        return dirty, max(before, self.height) + 1

    def top_of(self, part: TurnOrReply) -> int | None:
        """The first line of a part; None if it is not shown."""
        number = next((n for n, shown in enumerate(self.parts) if shown is part), None)
        return None if number is None else self.tops[number]

    def parts_between(self, first: int, end: int) -> list[tuple[int, TurnOrReply]]:
        """The parts with a line in this range, each with its first line."""
        ends = zip(self.parts, self.tops, self.tops[1:], strict=False)
        return [(top, part) for part, top, below in ends if top < end and below > first]

    def number_at(self, line: int) -> int | None:
        """Index of the block that has this line; None above the first and below the last."""
        number = bisect_right(self.tops, line) - 1
        return number if 0 <= number < len(self.blocks) else None

    def strip(self, line: int, styles: TranscriptStyles) -> Strip:
        """One line as its block draws it; empty where there is no block."""
        number = self.number_at(line)
        return EMPTY if number is None else self.blocks[number].strip(line - self.tops[number], styles)

    def unfold(self, line: int, column: int) -> bool:
        """Unfold the stretch whose mark is in this cell, with the next `update`; whether there is one."""
        number = self.number_at(line)
        block = None if number is None else self.blocks[number]
        return number is not None and isinstance(block, ReplyBlock) and block.unfold(line - self.tops[number], column)

    def line_of(self, reply: Reply, token: int) -> int | None:
        """The line a token begins on; None if it is not shown."""
        for number, block in enumerate(self.blocks):
            if isinstance(block, ReplyBlock) and block.reply is reply and number < len(self.tops):
                line = block.line_of(token)
                return None if line is None else self.tops[number] + line
        return None

    def _sync(self, parts: list[TurnOrReply], make: Callable[[TurnOrReply], Block]) -> int | None:
        """One block for each part; the line from which on blocks came or went, or None."""
        if parts == self.parts:
            return None
        added = len(parts) - len(self.parts)
        if self.parts and added > 0 and parts[added:] == self.parts:  # earlier parts, above the existing ones
            self.blocks[:0] = [make(part) for part in parts[:added]]
            self.parts = parts
            return TOP
        pairs = zip(parts, self.parts, strict=False)
        kept = next((i for i, (new, old) in enumerate(pairs) if new is not old), min(len(parts), len(self.parts)))
        self.blocks[kept:] = [make(part) for part in parts[kept:]]
        self.parts = parts
        return self.tops[kept]


FIRST_CHARACTERS = 12_000
"""A chat is opened with its last prompts and replies of this length."""
PartsOf = Callable[[Conversation], list[TurnOrReply]]


class ShownParts:
    """The end of a list of prompts and replies; `parts_of` gives all of them, from top to bottom."""

    def __init__(self, parts_of: PartsOf) -> None:
        self.hidden = 0
        """Prompts and replies at the beginning that have no block yet."""
        self._parts_of = parts_of

    def of(self, conversation: Conversation) -> list[TurnOrReply]:
        """The parts with blocks, at least two."""
        parts = self._parts_of(conversation)
        self.hidden = min(self.hidden, max(len(parts) - 2, 0))
        return parts[self.hidden :]

    def hide_above_end(self, conversation: Conversation) -> None:
        """Restrict the blocks to the last parts, which fill a few screens."""
        parts, room = self._parts_of(conversation), FIRST_CHARACTERS
        while parts and room > 0:
            part = parts.pop()
            room -= 200 + len(part.prompt if isinstance(part, Turn) else part.text)
        self.hidden = len(parts)

    def reach(self, conversation: Conversation, part: TurnOrReply) -> None:
        """Include a part and everything below it."""
        parts = self._parts_of(conversation)
        if part in parts[: self.hidden]:
            self.hidden = parts.index(part)
