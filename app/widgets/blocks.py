"""The blocks a transcript is made of: prompts and replies, each a stack of cached lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from app.conversation import Turn
from app.reply import Reply, Stage
from app.widgets.figures import ENDINGS, summary
from app.widgets.look import Look
from app.widgets.token_lines import Piece, TokenLines
from engine import Fate, FinishReason

INDENT = 4
"""Empty cells at the left of every text; a prompt has its mark there."""
MARK = "▌ "
QUEUED = " queued "
"""Prompts leave room for it at their right."""
COPY = "copy"
Markdown = Callable[[str, int], list[Strip]]
"""Renders Markdown at a width."""


class Block:
    """Lines of one width. `update` says from which line on something changed since the last time."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0
        self._strips: dict[int, Strip] = {}

    def update(self) -> int | None:
        """Take in what is new; the first line that changed, or None."""
        raise NotImplementedError

    def strip(self, y: int, look: Look) -> Strip:
        """One line, drawn once."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._draw(y, look)
        return strip

    def plain(self, y: int, start: int, end: int, look: Look) -> tuple[str, str]:
        """The text in these cells of a line, for the clipboard, and what joins it to the next line."""
        return self.strip(y, look).crop(start, end).text.rstrip(), "\n"

    def forget(self, first: int = 0) -> None:
        """Draw the lines from `first` on again."""
        if first == 0:
            self._strips.clear()
        else:
            self._strips = {y: strip for y, strip in self._strips.items() if y < first}

    def _draw(self, y: int, look: Look) -> Strip:
        raise NotImplementedError


class PromptBlock(Block):
    """What the user said, on a ground of its own, with an empty line below it."""

    def __init__(self, turn: Turn, width: int) -> None:
        super().__init__(width)
        self._turn = turn
        self._shown: tuple[bool, int] | None = None
        """Whether it waits, and which of several replies the chat goes on with."""
        self._text = TokenLines(width - INDENT - len(QUEUED))
        self._text.append([(turn.prompt.strip("\n"), Fate.PLAIN)], 0)
        self._lines = self._text.lines
        self.height = len(self._lines) + 1

    def update(self) -> int | None:
        """Only what stands at its right can change."""
        shown = (self._turn.reply is None, self._turn.place)
        if shown == self._shown:
            return None
        self._shown = shown
        self.forget()
        return 0

    def plain(self, y: int, start: int, end: int, look: Look) -> tuple[str, str]:
        """Prompts as they were typed."""
        if y >= len(self._lines):
            return super().plain(y, start, end, look)
        return self._text.plain(y, start - INDENT, end - INDENT)

    def _draw(self, y: int, look: Look) -> Strip:
        if y == len(self._lines):
            return Strip([])
        queued, place = self._shown or (False, 1)
        style = look.queued if queued else look.prompt
        margin = Segment(" " * (INDENT - len(MARK)), look.base)
        text = "".join(piece.text for piece in self._lines[y])
        line = Strip([margin, Segment(MARK, look.mark), Segment(text, style)])
        line = line.adjust_cell_length(self.width, style)
        of, link = len(self._turn.candidates), Style(meta={"@click": "app.candidates"})
        aside = Segment(QUEUED, look.mark) if queued else Segment(f" {place} of {of} ", look.mark + link)
        if (queued or of) and y == len(self._lines) - 1:
            line = Strip.join([line.crop(0, self.width - len(aside.text)), Strip([aside])])
        return line


class ReplyBlock(Block):
    """A reply: its tokens or its Markdown, a line of figures, and an empty line."""

    def __init__(self, reply: Reply, width: int, *, show_rejected: bool, markdown: Markdown | None) -> None:
        super().__init__(width)
        self._reply = reply
        self._tokens = TokenLines(width - INDENT, show_rejected=show_rejected)
        self._render = markdown
        self._rounds = 0
        self._numbered = 0
        self._stage: tuple[Stage, int] | None = None
        self._markdown: list[Strip] | None = None
        self._notes: list[tuple[str, bool]] = []

    def update(self) -> int | None:
        """Wrap the new rounds' tokens; everything below the first changed line moves, so it is drawn again."""
        reply = self._reply
        stage = (reply.stage, reply.prefilled[0])
        if len(reply.rounds) == self._rounds and stage == self._stage:
            return None
        dirty = 0 if self._stage is None else self._body_height - 1
        for record in reply.rounds[self._rounds :]:
            tokens = [(token.text, token.fate) for token in record.tokens()]
            self._tokens.append(tokens, self._numbered)
            self._numbered += len(tokens)
        if not reply.running and reply.tail and (self._stage is None or self._stage[0] is not reply.stage):
            self._tokens.append([(reply.tail, Fate.PLAIN)], self._numbered)
        self._rounds, self._stage = len(reply.rounds), stage
        if self._render is not None and not reply.running and reply.text:
            dirty, self._markdown = 0, self._render(reply.text, self.width - INDENT)
        self._notes = list(_wrapped_notes(_notes(reply), self.width - INDENT - len(COPY) - 2))
        self.height = self._body_height + len(self._notes) + 1
        dirty = max(dirty, 0)
        self.forget(dirty)
        return dirty

    def plain(self, y: int, start: int, end: int, look: Look) -> tuple[str, str]:
        """The reply's own text, without what was rejected and without the ends that only the width makes."""
        if self._markdown is not None or y >= self._body_height:
            return super().plain(y, max(start, INDENT), max(end, INDENT), look)
        return self._tokens.plain(y, start - INDENT, end - INDENT)

    @property
    def _body_height(self) -> int:
        if self._markdown is not None:
            return len(self._markdown)
        empty = self._tokens.lines == [[]] and self._reply.stage is not Stage.ANSWERING
        return 0 if empty else len(self._tokens.lines)

    def _draw(self, y: int, look: Look) -> Strip:
        gutter = Segment(" " * INDENT, look.base)
        if y < self._body_height:
            if self._markdown is not None:
                return Strip([gutter, *self._markdown[y]])
            return Strip([gutter, *self._token_segments(y, look)])
        if y - self._body_height < len(self._notes):
            text, failed = self._notes[y - self._body_height]
            note = Segment(text, look.error if failed else look.figures)
            return Strip([gutter, note, *(self._links(look) if y == self.height - 2 else ())])
        return Strip([])

    def _links(self, look: Look) -> Iterator[Segment]:
        """What can be clicked below a reply that has ended."""
        if not self._reply.running and self._reply.text:
            link = Style(meta={"@click": f"copy_reply({id(self._reply)})"})
            yield from (Segment("  ", look.base), Segment(COPY, look.link + link))

    def _token_segments(self, y: int, look: Look) -> Iterator[Segment]:
        lines = self._tokens.lines
        yield from _segments(lines[y], look)
        if self._reply.stage is Stage.ANSWERING and y == len(lines) - 1:
            yield Segment("▌", look.caret)


def _segments(pieces: Iterable[Piece], look: Look) -> Iterator[Segment]:
    """Neighbours of one style become one segment: fewer of them are quicker to draw."""
    text, style = "", Style.null()
    for piece in pieces:
        own = (look.spaces if piece.blank else look.fates)[piece.fate]
        if own is not style and text:
            yield Segment(text, style)
            text = ""
        text, style = text + piece.text, own
    if text:
        yield Segment(text, style)


def legend_strip(look: Look) -> Strip:
    """What the colours mean, for a picture that goes without the line at the top."""
    names = ((Segment(fate.value, look.fates[fate]), Segment("  ", look.base)) for fate in Fate)
    return Strip([Segment(" " * INDENT, look.base), *(segment for name in names for segment in name)])


def _notes(reply: Reply) -> Iterator[tuple[list[str], bool]]:
    """What stands below a reply: parts of a line, and whether it tells of a failure."""
    figures = summary(reply.statistics) if reply.rounds else []
    match reply.stage:
        case Stage.WAITING:
            yield ["◌ waiting for a free slot"], False
        case Stage.READING:
            done, total = reply.prefilled
            yield [f"◌ reading the prompt, {done} of {total} tokens"], False
        case Stage.ANSWERING:
            yield figures, False
        case Stage.INTERRUPTED:
            yield ["◌ interrupted", *figures], False
        case Stage.ENDED if reply.reason is FinishReason.ERROR:
            yield [f"✗ {reply.message or ENDINGS[FinishReason.ERROR]}"], True
            if figures:
                yield figures, False
        case Stage.ENDED:
            reason = reply.reason or FinishReason.EOS
            sign = "■" if reason is FinishReason.CANCELLED else "✓"
            yield [f"{sign} {ENDINGS[reason]}", *figures], False


def _wrapped_notes(notes: Iterable[tuple[list[str], bool]], width: int) -> Iterator[tuple[str, bool]]:
    """Figures that do not fit are left out, last ones first; a sentence is wrapped."""
    for parts, failed in notes:
        while len(parts) > 1 and len(" · ".join(parts)) > width:
            parts = parts[:-1]
        lines = TokenLines(width)
        lines.append([(" · ".join(parts), Fate.PLAIN)], 0)
        for line in lines.lines:
            yield "".join(piece.text for piece in line), failed
