"""The thinking at the beginning of a reply: which of its tokens it takes, what it says, and how its drafts fared."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.app.chat.thinking_text import Place, ThinkingText
from specchat.engine import Round, Thinking


@dataclass(frozen=True, slots=True)
class ThoughtFigures:
    """Figures of a reply that begins with thinking."""

    tokens: int
    """Emitted up to the closing marker and the space behind it; the markers are among them."""
    seconds: float
    """From the start of the first round to the end of the round with the closing marker, or of the last one so far."""
    ended: bool
    accepted: tuple[int, int]
    """Drafted tokens that were accepted: inside of the thinking, and outside."""
    tested: tuple[int, int]
    """Drafted tokens that were tested, inside and outside."""

    def words(self, *, going_on: bool) -> str:
        """How much it is, in words."""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{'thinking' if going_on else 'thought'} · {tokens} · {self.seconds:.1f} s"


class Thought:
    """Follows the rounds of a reply. Thinking stands at a reply's beginning; markers further on are text like other.

    Args:
        markers: What stands around the model's thinking; None for a model that does not think.
    """

    def __init__(self, markers: Thinking | None = None) -> None:
        self._markers = markers
        self._read = ThinkingText(markers)
        self.there = False
        """Whether the reply begins with thinking."""
        self.end: int | None = None
        """Number of the first token behind it, by `Reply.starts`; None while it goes on."""
        self._tokens = 0
        self._began: float | None = None
        self._ended = 0.0
        self._accepted, self._tested = [0, 0], [0, 0]

    @property
    def running(self) -> bool:
        """Whether what comes next belongs to it."""
        return self.there and self.end is None

    def holds(self, token: int) -> bool:
        """Whether a token belongs to it, by the numbers of `Reply.starts`."""
        return self.there and (self.end is None or token < self.end)

    def add(self, record: Round, first: int, *, own: bool) -> None:
        """Take in a round whose tokens are numbered from `first`; `own` rounds count for the acceptance."""
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
        if self.end is None or self._read.place is Place.BEHIND:
            self._ended = record.at

    def figures(self) -> ThoughtFigures | None:
        """Its figures as they are now; None for a reply without thinking."""
        if not self.there:
            return None
        accepted, tested = (self._accepted[0], self._accepted[1]), (self._tested[0], self._tested[1])
        seconds = max(self._ended - (self._began or 0.0), 0.0)
        return ThoughtFigures(self._tokens, seconds, self.end is not None, accepted, tested)

    def split(self, text: str) -> tuple[str, str]:
        """What was thought and what was answered, of the reply's text."""
        markers = self._markers
        if markers is None or not (markers.begun or text.lstrip().startswith(markers.opening)):
            return "", text
        thought, _, answer = text.lstrip().removeprefix(markers.opening).partition(markers.closing)
        return thought.strip(), answer.lstrip()

    def _add(self, piece: str, token: int) -> None:
        """One more emitted token."""
        before = self._read.place
        self._read.feed(piece)
        after = self._read.place
        if before is Place.OUTSIDE or (before is Place.BEHIND and after is Place.OUTSIDE):
            return
        self._tokens += 1
        self.there = self._read.begun
        if self.there and after is not Place.INSIDE:
            self.end = token + 1

    def _count(self, inside: bool, own: bool, *, accepted: bool) -> None:
        if own:
            self._tested[not inside] += 1
            self._accepted[not inside] += accepted
