"""The blocks of a transcript from top to bottom, with the first line of each; their text, and a found word in it."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from textual.selection import Selection
from textual.strip import Strip

from specchat.app.chat.reply import Reply
from specchat.app.storage.search_index import BEGIN, END
from specchat.app.ui.rendering.block import Block, TurnOrReply
from specchat.app.ui.rendering.reply_block import ReplyBlock
from specchat.app.ui.rendering.styles import TranscriptStyles

TOP = 1
"""Empty lines above the first block."""
EMPTY = Strip([])
"""A line where there is no block."""


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

    def block_of(self, part: TurnOrReply) -> tuple[int, Block] | None:
        """The first line and the block of a part; None if it is not shown."""
        shown = zip(self.parts, self.tops, self.blocks, strict=False)
        return next(((top, block) for each, top, block in shown if each is part), None)

    def reply_block(self, reply: Reply) -> tuple[int, ReplyBlock] | None:
        """The first line and the block of a reply; None if it is not shown."""
        top, block = self.block_of(reply) or (0, None)
        return (top, block) if isinstance(block, ReplyBlock) else None

    def parts_between(self, first: int, end: int) -> list[tuple[int, TurnOrReply]]:
        """The parts with a line in this range, each with its first line."""
        ends = zip(self.parts, self.tops, self.tops[1:], strict=False)
        return [(top, part) for part, top, below in ends if top < end and below > first]

    def block_at(self, line: int) -> tuple[int, Block | None]:
        """The first line and the block of this line; no block above the first and below the last."""
        number = bisect_right(self.tops, line) - 1
        return (self.tops[number], self.blocks[number]) if 0 <= number < len(self.blocks) else (line, None)

    def strip(self, line: int, styles: TranscriptStyles) -> Strip:
        """One line as its block draws it; empty where there is no block."""
        top, block = self.block_at(line)
        return EMPTY if block is None else block.strip(line - top, styles)

    def unfold(self, line: int, column: int) -> bool:
        """Unfold the stretch whose mark is in this cell, with the next `update`; whether there is one."""
        top, block = self.block_at(line)
        return block is not None and block.unfold(line - top, column)

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


def selected_text(stack: BlockStack, selection: Selection, width: int, styles: TranscriptStyles) -> str:
    """The selected text, for the clipboard: as it was written, not as it is wrapped."""
    text = ""
    for y in range(selection.start.y if selection.start else 0, stack.height):
        span = selection.get_span(y)
        if span is None:
            break
        top, block = stack.block_at(y)
        if block is not None:
            text += "".join(block.plain(y - top, span[0], width if span[1] == -1 else span[1], styles))
    return text.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class FoundWord:
    """One occurrence of a word in a text."""

    word: str
    before: int
    """Number of occurrences before it."""


def found_word(excerpt: str, text: str) -> FoundWord | None:
    """The first match of a search excerpt, as an occurrence in its text; None if the text lacks it."""
    first, begins, rest = excerpt.partition(BEGIN)
    if not begins:
        return None
    plain = f"{first}{rest}".replace(BEGIN, "").replace(END, "")
    cut = plain.startswith("…") and not text.startswith("…")
    at = text.find(plain.removeprefix("…").removesuffix("…") if cut else plain.removesuffix("…"))
    if at < 0:
        return None
    word = rest.partition(END)[0].casefold()
    return FoundWord(word, text[: at + len(first) - cut].casefold().count(word))


def line_of_word(found: FoundWord, block: Block, styles: TranscriptStyles) -> int:
    """The line of the word in a block, or of the nearest occurrence before it; 0 without any."""
    text, starts = "", []
    for y in range(block.height):
        starts.append(len(text))
        text += "".join(block.plain(y, 0, block.width, styles)).casefold()
    at, last = -1, 0
    for _ in range(found.before + 1):
        at = text.find(found.word, at + 1)
        if at < 0:
            break
        last = at
    return max(bisect_right(starts, last) - 1, 0)
