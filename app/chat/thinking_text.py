"""A reply's text, piece by piece: what of it is thinking, and what is the answer."""

from __future__ import annotations

from enum import Enum, auto

from specchat.engine import Thinking


class Place(Enum):
    """Where the text has got to."""

    BEFORE = auto()
    """It may still become the opening marker."""
    INSIDE = auto()
    BEHIND = auto()
    """In the space behind the closing marker."""
    OUTSIDE = auto()


class ThinkingText:
    """Thinking stands at a reply's beginning; markers further on are text like other.

    Args:
        markers: What stands around the model's thinking; None for a model that does not think.
    """

    def __init__(self, markers: Thinking | None) -> None:
        self._markers = markers
        self.place = Place.OUTSIDE if markers is None else Place.INSIDE if markers.begun else Place.BEFORE
        self.begun = self.place is Place.INSIDE
        """Whether the text begins with thinking."""
        self._text = ""
        """Up to the closing marker."""

    def feed(self, piece: str) -> str:
        """Take in what follows; the part of the answer that is sure with it."""
        if self.place is Place.BEHIND and piece.strip():
            self.place, piece = Place.OUTSIDE, piece.lstrip()
        if self.place is Place.OUTSIDE or self._markers is None:
            return piece
        if self.place is Place.BEHIND:
            return ""
        self._text += piece
        if self.place is Place.BEFORE:
            begun = self._text.lstrip()
            if begun.startswith(self._markers.opening):
                self.place, self.begun = Place.INSIDE, True
            elif not self._markers.opening.startswith(begun):
                self.place = Place.OUTSIDE
                return self._text
        closing = self._markers.closing
        if self.place is Place.INSIDE and closing in self._text[-len(closing) - len(piece) :]:
            answer = self._text.partition(closing)[2].lstrip()
            self.place = Place.OUTSIDE if answer else Place.BEHIND
            return answer
        return ""

    def end(self) -> str:
        """There is no more: what might have become the opening marker is the answer."""
        return self._text if self.place is Place.BEFORE else ""
