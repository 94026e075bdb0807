"""Wraps a text that arrives in pieces at the words' ends."""

import re
from collections.abc import Callable

from rich.cells import cell_len

_PARTS = re.compile(
    r"(?P<end>\n)|(?P<spaces>[^\S\n]+)|(?P<code>\x1b\[[\d;]*m)|(?P<sign>[⺀-￯🌀-\U0003ffff])"
    r"|(?P<word>[^\s\x1b⺀-￯🌀-\U0003ffff]+)|(?P<other>.)"
)
"""A line end, spaces, a code for a style, a wide character, at which a line may be broken, or a part of a word."""


class WordWrap:
    """Breaks lines before words that do not fit. Holds back the last word until it has ended.

    Args:
        width: returns the cells of a line.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._spaces = ""
        """Spaces before the word, not returned yet."""
        self._word = ""
        """The word so far, with codes."""
        self._cells = 0

    def feed(self, text: str) -> str:
        """What can be printed after this piece."""
        shown = ""
        for found in _PARTS.finditer(text):
            part = found[0]
            match found.lastgroup:
                case "end":
                    shown += f"{self._release()}{self._spaces}\n"
                    self._spaces, self._column = "", 0
                case "spaces":
                    shown += self._release()
                    self._spaces += part.expandtabs()
                case "code":
                    self._word += part
                case "sign":
                    shown += self._release() + self._add(part) + self._release()
                case _:
                    shown += self._add(part)
        return shown

    def _add(self, part: str) -> str:
        self._word += part
        self._cells += cell_len(part)
        return self._release() if self._cells >= self._width() else ""

    def _release(self) -> str:
        """The word, on the next line if it does not fit."""
        if not self._word:
            return ""
        spaces, width = self._spaces, max(self._width(), 1)
        if self._cells and self._column and self._column + len(spaces) + self._cells > width:
            spaces, self._column = "\n", 0
        else:
            self._column += len(spaces)
        self._column += self._cells
        if self._column > width:
            self._column %= width
        shown = spaces + self._word
        self._spaces, self._word, self._cells = "", "", 0
        return shown
