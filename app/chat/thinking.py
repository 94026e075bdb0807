"""Thinking at the start of a reply: which of its text and tokens it takes, and how its drafts were accepted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from specchat.engine import Round, Thinking


class Place(Enum):
    """Position of the text relative to the thinking."""

    BEFORE = auto()
    """The text so far may become the opening marker."""
    INSIDE = auto()
    AFTER = auto()
    """In the white space after the closing marker."""
    OUTSIDE = auto()


class ThinkingText:
    """Splits a streamed text into thinking and answer. Markers count only at the start of a reply.

    Args:
        markers: Markers around the model's thinking; None for a model that does not think.
    """

    def __init__(self, markers: Thinking | None) -> None:
        self._markers = markers
        self.place = Place.OUTSIDE if markers is None else Place.INSIDE if markers.begun else Place.BEFORE
        self.begun = self.place is Place.INSIDE
        """Whether the text starts with thinking."""
        self._text = ""
        """The text up to the closing marker."""

    def feed(self, piece: str) -> str:
        """Add text; return the part that belongs to the answer for certain."""
        if self.place is Place.AFTER and piece.strip():
            self.place, piece = Place.OUTSIDE, piece.lstrip()
        if self.place is Place.OUTSIDE or self._markers is None:
            return piece
        if self.place is Place.AFTER:
            return ""
        self._text += piece
        if self.place is Place.BEFORE:
            start = self._text.lstrip()
            if start.startswith(self._markers.opening):
                self.place, self.begun = Place.INSIDE, True
            elif not self._markers.opening.startswith(start):
                self.place = Place.OUTSIDE
                return self._text
        closing = self._markers.closing
        if self.place is Place.INSIDE and closing in self._text[-len(closing) - len(piece) :]:
            answer = self._text.partition(closing)[2].lstrip()
            self.place = Place.OUTSIDE if answer else Place.AFTER
            return answer
        return ""

    def end(self) -> str:
        """End the text; return an incomplete opening marker, which belongs to the answer."""
        return self._text if self.place is Place.BEFORE else ""


@dataclass(frozen=True, slots=True)
class ThoughtFigures:
    """Figures of a reply that starts with thinking."""

    tokens: int
    """Emitted tokens up to the closing marker and the space after it, including the markers."""
    seconds: float
    """From the start of the first round to the end of the round with the closing marker, or of the last one so far."""
    accepted: tuple[int, int]
    """Accepted drafted tokens inside and outside the thinking."""
    tested: tuple[int, int]
    """Tested drafted tokens inside and outside the thinking."""

    def words(self, *, going_on: bool) -> str:
        """Number of tokens and duration, in words."""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{'thinking' if going_on else 'thought'} · {tokens} · {self.seconds:.1f} s"


class Thought:
    """Follows the rounds of a reply; `markers` as for `ThinkingText`."""

    def __init__(self, markers: Thinking | None = None) -> None:
        self._markers = markers
        self._read = ThinkingText(markers)
        self.there = False
        """Whether the reply starts with thinking."""
        self.end: int | None = None
        """Number of the first token after it, by `Reply.starts`; None while it continues."""
        self._tokens = 0
        self._began: float | None = None
        self._ended = 0.0
        self._accepted, self._tested = [0, 0], [0, 0]

    @property
    def running(self) -> bool:
        """Whether the next token belongs to the thinking."""
        return self.there and self.end is None

    def holds(self, token: int) -> bool:
        """Whether a token belongs to the thinking, by the numbers of `Reply.starts`."""
        return self.there and (self.end is None or token < self.end)

    def add(self, record: Round, first: int, *, own: bool) -> None:
        """Add a round whose first token has the number `first`; only `own` rounds count for the acceptance."""
        if self._markers is None:
            return
        if self._began is None:
            self._began = record.at - record.seconds
        for place in range(record.accepted):
            self._add(record.pieces[place], first + place)
            self._count(self.end is None or first + place < self.end, own, accepted=True)
        if record.tested > record.accepted:
            self._count(self._read.place in (Place.BEFORE, Place.INSIDE), own, accepted=False)
        if record.last is not None:
            self._add(record.last_piece, first + len(record.drafted))
        if self.end is None or self._read.place is Place.AFTER:
            self._ended = record.at

    def figures(self) -> ThoughtFigures | None:
        """The current figures; None for a reply without thinking."""
        if not self.there:
            return None
        accepted, tested = (self._accepted[0], self._accepted[1]), (self._tested[0], self._tested[1])
        seconds = max(self._ended - (self._began or 0.0), 0.0)
        return ThoughtFigures(self._tokens, seconds, accepted, tested)

    def split(self, text: str) -> tuple[str, str]:
        """Thinking and answer of the reply's text."""
        markers = self._markers
        if markers is None or not (markers.begun or text.lstrip().startswith(markers.opening)):
            return "", text
        thought, _, answer = text.lstrip().removeprefix(markers.opening).partition(markers.closing)
        return thought.strip(), answer.lstrip()

    def _add(self, piece: str, token: int) -> None:
        """Add an emitted token."""
        before = self._read.place
        self._read.feed(piece)
        after = self._read.place
        if before is Place.OUTSIDE or (before is Place.AFTER and after is Place.OUTSIDE):
            return
        self._tokens += 1
        self.there = self._read.begun
        if self.there and after is not Place.INSIDE:
            self.end = token + 1

    def _count(self, inside: bool, own: bool, *, accepted: bool) -> None:
        if own:
            self._tested[not inside] += 1
            self._accepted[not inside] += accepted
