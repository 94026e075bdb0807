"""Wraps a growing sequence of tokens into lines, of which only the last one changes.

Each line is a list of pieces: visible text of one token, its fate, and the token's number.
Control characters are escaped first, so a piece contains nothing that a terminal interprets.
"""

import re
from collections.abc import Container, Iterable
from itertools import takewhile
from math import inf
from typing import NamedTuple

from rich.cells import cell_len

from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import FOLD, HIDE, SHOW
from specchat.app.ui.rendering.cells import characters, continuing
from specchat.engine import Fate

TAB = 4
FOLDED = "folded"
"""Stands for the fates of a stretch that is folded into one mark."""
FOLD_MARK = "┊"
TITLE = "title"
"""Stands for the fate of a title, which is no token."""
REJECTED_SHOWN = {
    FOLD: f"rejected drafts of finished replies are folded into {FOLD_MARK}",
    SHOW: "rejected drafts are shown in place",
    HIDE: "rejected drafts are hidden",
}
"""What is said of each of `app.settings.settings.REJECTED`."""
HIDDEN = (Fate.REJECTED, Fate.DISCARDED, FOLDED)
"""Fates of tokens that are not part of the reply's text."""

# Scripts written without spaces may break after every character.
_UNSPACED = "\u2e80-\u303f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_CHUNKS = re.compile(f"\n|\t|[^\\S\n\t]+|[{_UNSPACED}]|[^\\s{_UNSPACED}]+")


class Piece(NamedTuple):
    """A stretch of one token on one line."""

    text: str
    fate: str
    """A `Fate`, or the name of another style."""
    token: int

    @property
    def blank(self) -> bool:
        """Whether it is nothing but space, which carries no underline or strike."""
        return self.text.isspace()


class TokenLines:
    """The lines of one reply at one width.

    Args:
        width: Cells of a line.
        rejected: What becomes of a stretch of rejected and discarded tokens: `SHOW`, `HIDE`, or `FOLD` into a mark.
        unfolded: Numbers of the first tokens of those stretches that are shown all the same.
    """

    def __init__(self, width: int, *, rejected: str = SHOW, unfolded: Container[int] = ()) -> None:
        self.width = max(width, 2)  # a wide character must fit
        self._rejected, self._unfolded = rejected, unfolded
        self._stretch: int | None = None
        """The first token of the stretch that the last token belongs to; None if that is part of the text."""
        self.lines: list[list[Piece]] = [[]]
        self.joints: dict[int, str] = {}
        """For each line that ends because it is full: what stood between it and the next, a space or nothing."""
        self._swallowed = ""
        """Space at the end of the last line for which there was no room."""
        self._column = 0
        self._word = 0
        """Number of pieces of the last line before its last word."""
        self._word_column = 0

    def append(self, tokens: Iterable[tuple[str, str]], first: int, *, alone: bool = False) -> None:
        """Add tokens, numbered from `first`.

        With `alone` they begin a line of their own, and no line ends between them but for want of room.
        """
        if alone and self.lines[-1]:
            self._break(len(self.lines[-1]))
        for number, (text, fate) in enumerate(tokens, first):
            hidden = fate in HIDDEN
            if not text and not hidden:
                continue  # of a call, or part of a character: it does not part what was rejected before and after it
            begins = hidden and self._stretch is None
            self._stretch = (number if begins else self._stretch) if hidden else None
            if not hidden or self._rejected == SHOW or (self._rejected == FOLD and self._stretch in self._unfolded):
                drawn = draft_text(text) if hidden or alone else escape_controls(text)
                for chunk in _CHUNKS.findall(drawn[self._continue(drawn, hidden) :]):
                    self._add(chunk, fate, number)
            elif begins and self._rejected == FOLD:
                self._add(FOLD_MARK, FOLDED, number)

    def paragraph(self) -> None:
        """Leave a line empty below the text so far."""
        if self.lines[-1]:
            self._break(len(self.lines[-1]))
        if len(self.lines) > 1 and self.lines[-2] and self.lines[-2][0].fate != TITLE:
            self._break(0)

    def title(self, text: str) -> None:
        """Write a line above all others, which is no part of the text; an empty reply gets one with its first token."""
        if not (self.lines[0] and self.lines[0][0].fate == TITLE):
            self.lines.insert(0, [])
        self.lines[0] = [Piece(escape_controls(text), TITLE, -1)]

    def line_of(self, token: int) -> int | None:
        """The first line with this token; None if it is not shown."""
        return next((y for y, line in enumerate(self.lines) if any(piece.token == token for piece in line)), None)

    def column_of(self, token: int, y: int) -> int:
        """The column of line `y` at which a token begins; the end of the line if it is not on it."""
        return sum(cell_len(piece.text) for piece in takewhile(lambda piece: piece.token != token, self.lines[y]))

    def token_at(self, y: int, column: int, *, tokens: float = inf, nearest: bool = False) -> int | None:
        """The token in a cell; with `nearest`, otherwise the last one before it on the line.

        Args:
            y: The line.
            column: The cell.
            tokens: Pieces from this token number on are ignored.
            nearest: Whether a cell without a token counts as the token before it.
        """
        end, found = 0, None
        for piece in self.lines[y] if 0 <= y < len(self.lines) else ():
            if piece.token >= tokens or (column < end and (found is not None or not nearest)):
                break
            end += cell_len(piece.text)
            found = piece.token
        return found if nearest or 0 <= column < end else None

    def _add(self, chunk: str, fate: str, token: int) -> None:
        if chunk == "\n":
            self._break(len(self.lines[-1]))
        elif chunk.isspace():
            self._space(chunk, fate, token)
        else:
            self._text(chunk, fate, token)

    def _continue(self, text: str, hidden: bool) -> int:
        """Add the beginning of a token that continues a character to the token before it, and return its length.

        A token that is part of the text continues the last one that is part of it; a hidden token the last hidden one.
        """
        line = self.lines[-1]
        at = next((n for n in reversed(range(len(line))) if (line[n].fate in HIDDEN) == hidden), None)
        if at is None or (hidden and at < len(line) - 1):
            return 0
        before = line[at].text
        count = continuing(before, text)
        size = cell_len(before + text[:count]) - cell_len(before)
        if self._column + size > self.width:
            last = characters(before)[-1]
            if at < len(line) - 1 or last == before:
                return 0
            line[at] = line[at]._replace(text=before[: -len(last)])
            line.append(line[at]._replace(text=last))
            self._wrap(at + 1)
            self._column, at, before = cell_len(last), 0, last
        elif count and at < self._word:
            self._word_column += size
        if count:
            self.lines[-1][at] = self.lines[-1][at]._replace(text=before + text[:count])
            self._column += size
        return count

    def _space(self, chunk: str, fate: str, token: int) -> None:
        size = TAB - self._column % TAB if chunk == "\t" else cell_len(chunk)
        size = min(size, self.width - self._column)  # space at the end of a line needs no room
        if size > 0:
            self._put(" " * size, size, fate, token)
        else:
            self._swallowed = " "
        self._end_word()

    def _text(self, chunk: str, fate: str, token: int) -> None:
        size = cell_len(chunk)
        if self._column + size > self.width and self._word:
            self._wrap(self._word)
        while self._column + size > self.width:  # a word longer than a line
            head, rest = _split(chunk, self.width - self._column, force=self._column == 0)
            if head:
                self._put(head, cell_len(head), fate, token)
            self._wrap(len(self.lines[-1]))
            chunk, size = rest, cell_len(rest)
        self._put(chunk, size, fate, token)
        if size == 2 and _UNSPACED_CHARACTER.fullmatch(chunk):
            self._end_word()

    def plain(self, number: int, start: int, end: int) -> tuple[str, str]:
        """The reply's own text in these cells of a line, and what joins it to the next line.

        Tokens that are no part of the reply are left out.
        """
        text, column = "", 0
        for piece in self.lines[number]:
            for character in characters(piece.text):
                if start <= column < end and piece.fate not in (*HIDDEN, TITLE):
                    text += character
                column += cell_len(character)
        return text, self.joints.get(number, "\n")

    def _put(self, text: str, size: int, fate: str, token: int) -> None:
        self.lines[-1].append(Piece(text, fate, token))
        self._column += size

    def _end_word(self) -> None:
        self._word, self._word_column = len(self.lines[-1]), self._column

    def _wrap(self, at: int) -> None:
        """End the full last line before its piece number `at`."""
        full, joint = len(self.lines) - 1, self._swallowed
        self._break(at)
        self.joints[full] = joint

    def _break(self, at: int) -> None:
        """End the last line before its piece number `at`; what follows begins the next."""
        line = self.lines[-1]
        self.joints.pop(len(self.lines) - 1, None)
        self._column = self._column - self._word_column if at < len(line) else 0
        self.lines.append(line[at:])
        del line[at:]
        self._word = self._word_column = 0
        self._swallowed = ""


def _split(text: str, cells: int, *, force: bool) -> tuple[str, str]:
    """Cut between characters so that the head fits into `cells`; `force` puts one into it whatever its size."""
    head = ""
    for character in characters(text):
        if cell_len(head + character) > cells and (head or not force):
            break
        head += character
    return head, text[len(head) :]


SPACE, LINE_END, BEGIN, END, OTHER = "␣", "↵", "⊢", "⊣", "◇"
_LINE_END = re.compile(r"\n[ \t]*")
_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]")
"""Names that special tokens have in the vocabularies of the common families of models."""
_ENDS = re.compile(r"end|eos|eot|eom|</s>|/INST")
_BEGINS = re.compile(r"start|begin|bos|<s>|INST")


def draft_text(text: str) -> str:
    """The text of a drafted token as it is drawn.

    Special tokens are ⊢ (begin of a text or a turn), ⊣ (its end) or ◇, line ends are ↵ including their
    indent, and space alone is ␣, which is visible.
    """
    text = escape_controls(text)
    if not text.strip(" \t"):
        return SPACE if text else ""
    return _LINE_END.sub(LINE_END, _SPECIAL.sub(_sign, text))


def _sign(name: re.Match[str]) -> str:
    if _ENDS.search(name[0]):
        return END
    return BEGIN if _BEGINS.search(name[0]) else OTHER
