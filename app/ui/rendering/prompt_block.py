"""A prompt in a transcript, with its attachments and the marks of its versions."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from specchat.app.chat.attachments import label
from specchat.app.chat.conversation import Turn
from specchat.app.sanitize import escape_controls
from specchat.app.ui.rendering.block import INDENT, Block
from specchat.app.ui.rendering.styles import TranscriptStyles
from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.engine import Fate

MARK = "▌ "
QUEUED = " queued "
"""Prompts leave room for it at their right."""


class PromptBlock(Block):
    """The prompt on its own background, with an empty line below it."""

    def __init__(self, turn: Turn, width: int) -> None:
        super().__init__(width)
        self._turn = turn
        self._shown: tuple[object, ...] | None = None
        """Whether it waits, and which of several versions and replies are shown."""
        self._text = TokenLines(width - INDENT - len(QUEUED))
        self._text.append([(turn.prompt.strip("\n"), Fate.PLAIN)], 0)
        self._lines = self._text.lines
        self._chips: tuple[str, ...] = ()
        """What was sent along, a line each."""
        self.height = len(self._lines) + len(turn.attachments) + 1

    def update(self) -> int | None:
        """Only the text at its right and below it can change."""
        turn = self._turn
        self._chips = tuple(escape_controls(label(each)) for each in turn.attachments)
        shown = (turn.reply is None, turn.version, len(turn.versions), turn.place, len(turn.replies), self._chips)
        if shown == self._shown:
            return None
        self._shown = shown
        self.forget()
        return 0

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """Prompts as they were typed."""
        if y >= len(self._lines):
            return super().plain(y, start, end, styles)
        return self._text.plain(y, start - INDENT, end - INDENT)

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        if y >= len(self._lines):
            chip = y - len(self._lines)
            return self._chip(chip, styles) if chip < len(self._chips) else self._versions(styles)
        queued = self._turn.reply is None
        style = styles.queued if queued else styles.prompt
        margin = Segment(" " * (INDENT - len(MARK)), styles.base)
        text = "".join(piece.text for piece in self._lines[y])
        line = Strip([margin, Segment(MARK, styles.mark), Segment(text, style)])
        line = line.adjust_cell_length(self.width, style)
        if queued and y == len(self._lines) - 1:
            line = Strip.join([line.crop(0, self.width - len(QUEUED)), Strip([Segment(QUEUED, styles.mark)])])
        return line

    def _chip(self, number: int, styles: TranscriptStyles) -> Strip:
        """Below the prompt: a text that was sent along; a click opens it."""
        link = Style(meta={"@click": f"request('attachment', {id(self._turn)}, ({number},))"})
        margin = Segment(" " * (INDENT - len(MARK)), styles.base)
        text = set_cell_size(f"▤ {self._chips[number]}", min(cell_len(self._chips[number]) + 2, self.width - INDENT))
        parts = [margin, Segment(MARK, styles.mark), Segment(text, styles.prompt + styles.link + link)]
        return Strip(parts).adjust_cell_length(self.width, styles.prompt)

    def _versions(self, styles: TranscriptStyles) -> Strip:
        """Below the prompt, at the right: which of several versions of it and of the reply are shown."""
        turn = self._turn
        places = ("prompt", False, turn.version, len(turn.versions)), ("reply", True, turn.place, len(turn.replies))
        parts: list[Segment] = []
        for name, of_reply, place, of in places:
            if of < 2:
                continue
            back, forth = (
                Style(meta={"@click": f"request('version', {id(turn)}, ({of_reply}, {step}))"}) for step in (-1, 1)
            )
            count = Style(meta={"@click": "app.run('candidates')"}) if of_reply else Style()
            parts += [
                Segment(f"  {name} ", styles.figures),
                Segment("‹ ", styles.link + back),
                Segment(f"{place} / {of}", styles.figures + count),
                Segment(" ›", styles.link + forth),
                *([Segment(" · ", styles.figures), Segment("/candidates", styles.link + count)] if of_reply else ()),
            ]
        room = self.width - sum(len(part.text) for part in parts) - 1
        return Strip([Segment(" " * max(room, 0), styles.base), *parts]) if parts else Strip([])
