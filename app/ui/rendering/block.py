"""Blocks of a transcript: a prompt or a reply as lines; here what they share, and prompts."""

from collections.abc import Container, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from specchat.app.chat.attachments import label
from specchat.app.chat.conversation import Prompt
from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls
from specchat.app.ui.rendering.styles import TranscriptStyles
from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.app.ui.rendering.tool_lines import ToolLines
from specchat.engine import Fate

INDENT = 4
"""Empty cells at the left of every text; the mark of a prompt is there."""
GAP = "┄┄ the model was not told the {count} above ┄┄"

TurnOrReply = Prompt | Reply
"""What a block shows."""


class Look(NamedTuple):
    """How replies are shown."""

    rejected: str
    """One of `app.settings.settings.REJECTED`."""
    markdown: bool
    by_round: bool
    """One round per line."""
    thoughts: bool
    """Whether thinking is unfolded."""
    drafts: bool = True
    """Whether a growing reply shows rejected drafts that are folded later."""
    forkable: bool = True
    """Whether a reply can be continued here."""


class Block:
    """Lines of one width. `update` returns the first line that changed since the last call."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0
        self.told = True
        """False for a message that the model did not receive for the last reply: it is grey."""
        self.gap = ""
        """Text of the last line, which is empty otherwise."""

    def update(self) -> int | None:
        """Read the changes; returns the first line that changed, or None."""
        raise NotImplementedError

    def strip(self, y: int, styles: TranscriptStyles) -> Strip:
        """One line."""
        if self.gap and y == self.height - 1:
            return Strip([Segment(" " * INDENT, styles.base), Segment(self.gap, styles["figures"])])
        strip = self._draw(y, styles)
        if self.told:
            return strip
        return Strip([Segment(text, (style or styles.base) + styles["untold"]) for text, style, _ in strip])

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """The text in these cells of a line, for the clipboard, and what joins it to the next line."""
        return self.strip(y, styles).crop(start, end).text.rstrip(), "\n"

    def unfold(self, y: int, column: int) -> bool:  # noqa: ARG002
        """Unfold or fold what has its mark in this cell, with the next update; returns whether there is any."""
        return False

    def mark_left_out(self, part: TurnOrReply, prompts: Sequence[Prompt], left_out: Container[Prompt]) -> None:
        """Make the block grey if its message did not fit into the context; the last of several in a row counts them.

        Args:
            part: The prompt or reply of this block.
            prompts: The prompts of the path.
            left_out: The prompts that the model did not receive.
        """
        place = next((n for n, prompt in enumerate(prompts) if part in (prompt, prompt.reply)), None)
        if place is None or prompts[place] not in left_out:
            return
        self.told = False
        last = place + 1 == len(prompts) or prompts[place + 1] not in left_out
        if last and part is prompts[place].reply:
            first = place
            while first and prompts[first - 1] in left_out:
                first -= 1
            count = place - first + 1
            self.gap = GAP.format(count=f"{count} messages" if count > 1 else "message")

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        raise NotImplementedError


MARK = "▌ "
QUEUED = " queued "
"""Prompts leave room for it at their right."""


class PromptBlock(Block):
    """The prompt on its own background, with an empty line below it; above it results of calls, folded or not."""

    def __init__(self, prompt: Prompt, width: int, *, opened: bool = False) -> None:
        super().__init__(width)
        self._prompt = prompt
        self._shown: tuple[object, ...] | None = None
        """Whether it waits, and which of several versions and replies are shown."""
        self._results = ToolLines(width - INDENT, opened=opened)
        self._results.show((result, "") for result in prompt.results)
        self._text = TokenLines(width - INDENT - len(QUEUED))
        self._text.append([(prompt.text.strip("\n"), Fate.PLAIN)], 0)
        self._lines = self._text.lines if prompt.text or not prompt.results else []
        self._chips: tuple[str, ...] = ()
        """What was sent along, a line each."""
        self._set_height()

    def update(self) -> int | None:
        """Only the results, and the text at its right and below it can change."""
        self._chips = tuple(escape_controls(label(each)) for each in self._prompt.attachments)
        shown = (self._prompt.reply is None, self._chips, self._results.toggled, *self._places())
        if shown == self._shown:
            return None
        self._shown = shown
        self._set_height()
        return 0

    def unfold(self, y: int, column: int) -> bool:  # noqa: ARG002
        """Unfold or fold the result whose first line this is, with the next update."""
        return self._results.toggle(y)

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """Prompts as they were typed."""
        line = y - len(self._results.lines)
        if line < 0:
            return super().plain(y, max(start, INDENT), max(end, INDENT), styles)
        if line >= len(self._lines):
            return super().plain(y, start, end, styles)
        return self._text.plain(line, start - INDENT, end - INDENT)

    def _set_height(self) -> None:
        self.height = len(self._results.lines) + len(self._lines) + len(self._prompt.attachments) + 1

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        if y < len(self._results.lines):
            return Strip([Segment(" " * INDENT, styles.base), Segment(self._results.lines[y], styles["figures"])])
        y -= len(self._results.lines)
        if y >= len(self._lines):
            chip = y - len(self._lines)
            return self._chip(chip, styles) if chip < len(self._chips) else self._versions(styles)
        queued = self._prompt.reply is None
        style = styles["queued"] if queued else styles["prompt"]
        margin = Segment(" " * (INDENT - len(MARK)), styles.base)
        text = "".join(piece.text for piece in self._lines[y])
        line = Strip([margin, Segment(MARK, styles["mark"]), Segment(text, style)])
        line = line.adjust_cell_length(self.width, style)
        if queued and y == len(self._lines) - 1:
            line = Strip.join([line.crop(0, self.width - len(QUEUED)), Strip([Segment(QUEUED, styles["mark"])])])
        return line

    def _chip(self, number: int, styles: TranscriptStyles) -> Strip:
        """Below the prompt: a text that was sent along; a click opens it."""
        link = Style(meta={"@click": f"request('attachment', {id(self._prompt)}, ({number},))"})
        margin = Segment(" " * (INDENT - len(MARK)), styles.base)
        text = set_cell_size(f"▤ {self._chips[number]}", min(cell_len(self._chips[number]) + 2, self.width - INDENT))
        parts = [margin, Segment(MARK, styles["mark"]), Segment(text, styles["prompt"] + styles["link"] + link)]
        return Strip(parts).adjust_cell_length(self.width, styles["prompt"])

    def _places(self) -> list[tuple[str, int, int]]:
        """The numbers of the shown prompt and reply among their versions, and the numbers of versions."""
        return [(name, part.place, len(part.siblings)) for name, part in self._prompt.named_parts]

    def _versions(self, styles: TranscriptStyles) -> Strip:
        """Below the prompt, at the right: which of several versions of it and of the reply are shown."""
        figures, linked = styles["figures"], styles["link"]
        parts: list[Segment] = []
        for name, place, of in self._places():
            if of < 2:
                continue
            of_reply = name == "reply"
            call = f"request('version', {id(self._prompt)}, ({of_reply}, "
            back, forth = (Style(meta={"@click": f"{call}{step}))"}) for step in (-1, 1))
            count = Style(meta={"@click": "app.run('candidates')"}) if of_reply else Style()
            parts += [
                Segment(f"  {name} ", figures),
                Segment("‹ ", linked + back),
                Segment(f"{place} / {of}", figures + count),
                Segment(" ›", linked + forth),
                *([Segment(" · ", figures), Segment("/candidates", linked + count)] if of_reply else ()),
            ]
        room = self.width - sum(len(part.text) for part in parts) - 1
        return Strip([Segment(" " * max(room, 0), styles.base), *parts]) if parts else Strip([])
