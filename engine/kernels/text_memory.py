"""Memory for the tokens of a text that grows, as the kernels read it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

_ROOM = 1024
"""Room for tokens after a text when its memory grows; it grows when less than half of it is left. The rounds of a call
add fewer."""


class TokenMark(IntEnum):
    """`sk_mark` of a token."""

    ENDS = 1
    """Drafts from texts end with it."""
    NEVER_DRAFTED = 2
    """Drafts from texts never have it."""


class TextMemory:
    """Token ids of a text, int64, with room for what the rounds of a call add."""

    def __init__(self) -> None:
        self.ids = array("q")
        """Longer than the text."""
        self.count = 0
        """Tokens of the text."""

    @property
    def address(self) -> int:
        """Of the first token, until the text has grown."""
        return self.ids.buffer_info()[0]

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        count = self.count + len(tokens)
        if len(self.ids) < count + _ROOM // 2:
            self.ids.extend([0] * (count + _ROOM - len(self.ids)))
        self.ids[self.count : count] = array("q", tokens)
        self.count = count
