"""A block of a transcript: a prompt or a reply, as a stack of cached lines."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rich.segment import Segment
from textual.strip import Strip

from specchat.app.chat.conversation import Turn
from specchat.app.ui.rendering.block_stack import TurnOrReply
from specchat.app.ui.rendering.styles import TranscriptStyles

INDENT = 4
"""Empty cells at the left of every text; a prompt has its mark there."""


class Block:
    """Lines of one width, drawn once and cached. `update` returns the first line that changed since the last call."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0
        self.told = True
        """Whether the model was told this when it wrote the last reply; what it was not told is grey."""
        self.gap = ""
        """What the last line says, which is empty otherwise."""
        self._strips: dict[int, Strip] = {}

    def update(self) -> int | None:
        """Take in what is new; the first line that changed, or None."""
        raise NotImplementedError

    def strip(self, y: int, styles: TranscriptStyles) -> Strip:
        """One line, drawn once."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._draw(y, styles) if self.told else _grey(self._draw(y, styles), styles)
            if self.gap and y == self.height - 1:
                strip = Strip([Segment(" " * INDENT, styles.base), Segment(self.gap, styles.figures)])
            self._strips[y] = strip
        return strip

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """The text in these cells of a line, for the clipboard, and what joins it to the next line."""
        return self.strip(y, styles).crop(start, end).text.rstrip(), "\n"

    def forget(self, first: int = 0) -> None:
        """Draw the lines from `first` on again."""
        if first == 0:
            self._strips.clear()
        else:
            self._strips = {y: strip for y, strip in self._strips.items() if y < first}

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        raise NotImplementedError


def _grey(strip: Strip, styles: TranscriptStyles) -> Strip:
    return Strip([Segment(text, (style or styles.base) + styles.untold) for text, style, _ in strip])


GAP = "┄┄ the model was not told the {count} above ┄┄"


def mark_untold(block: Block, part: TurnOrReply, turns: Sequence[Turn], left_out: Container[Turn]) -> None:
    """Make a block grey whose turn was left out; behind the last one of several in a row stands how many there are.

    Args:
        block: Shows the part.
        part: A prompt or a reply.
        turns: The path.
        left_out: Those that the model was not told.
    """
    place = next((n for n, turn in enumerate(turns) if turn is part or turn.reply is part), None)
    if place is None or turns[place] not in left_out:
        return
    block.told = False
    ends = place + 1 == len(turns) or turns[place + 1] not in left_out
    if ends and part is turns[place].reply:
        first = place
        while first and turns[first - 1] in left_out:
            first -= 1
        count = place - first + 1
        block.gap = GAP.format(count=f"{count} messages" if count > 1 else "message")
