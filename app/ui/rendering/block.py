"""Blocks of a transcript: a prompt or a reply as cached lines."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from rich.segment import Segment
from textual.strip import Strip

from specchat.app.chat.reply import Reply
from specchat.app.chat.turn import Turn
from specchat.app.ui.rendering.styles import TranscriptStyles

INDENT = 4
"""Empty cells at the left of every text; the mark of a prompt is there."""
GAP = "┄┄ the model was not told the {count} above ┄┄"

TurnOrReply = Turn | Reply
"""What a block shows; a turn means its prompt."""


class Look(NamedTuple):
    """How replies are shown."""

    rejected: str
    """One of `app.settings.settings.REJECTED`."""
    markdown: bool
    by_round: bool
    """One round per line."""
    thoughts: bool
    """Whether thinking is unfolded."""


class Block:
    """Lines of one width, drawn once and cached. `update` returns the first line that changed since the last call."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0
        self.told = True
        """False for a message that the model did not receive for the last reply: it is grey."""
        self.gap = ""
        """Text of the last line, which is empty otherwise."""
        self._strips: dict[int, Strip] = {}

    def update(self) -> int | None:
        """Read the changes; returns the first line that changed, or None."""
        raise NotImplementedError

    def strip(self, y: int, styles: TranscriptStyles) -> Strip:
        """One line, drawn once."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._draw(y, styles)
            if not self.told:
                strip = Strip([Segment(text, (style or styles.base) + styles.untold) for text, style, _ in strip])
            if self.gap and y == self.height - 1:
                strip = Strip([Segment(" " * INDENT, styles.base), Segment(self.gap, styles.figures)])
            self._strips[y] = strip
        return strip

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """The text in these cells of a line, for the clipboard, and what joins it to the next line."""
        return self.strip(y, styles).crop(start, end).text.rstrip(), "\n"

    def forget(self, first: int = 0) -> None:
        """Discard the cached lines from `first` on."""
        if first == 0:
            self._strips.clear()
        else:
            self._strips = {y: strip for y, strip in self._strips.items() if y < first}

    def mark_left_out(self, part: TurnOrReply, turns: Sequence[Turn], left_out: Container[Turn]) -> None:
        """Make the block grey if its turn did not fit into the context; the last of several in a row counts them.

        Args:
            part: The prompt or reply of this block.
            turns: The path.
            left_out: The turns that the model did not receive.
        """
        place = next((n for n, turn in enumerate(turns) if turn is part or turn.reply is part), None)
        if place is None or turns[place] not in left_out:
            return
        self.told = False
        last = place + 1 == len(turns) or turns[place + 1] not in left_out
        if last and part is turns[place].reply:
            first = place
            while first and turns[first - 1] in left_out:
                first -= 1
            count = place - first + 1
            self.gap = GAP.format(count=f"{count} messages" if count > 1 else "message")

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        raise NotImplementedError
