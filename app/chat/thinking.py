"""The thinking in a reply: which of its tokens it takes, and how its drafts were accepted."""

from bisect import bisect_right
from dataclasses import dataclass

from specchat.engine import Round


@dataclass(frozen=True, slots=True)
class ThoughtFigures:
    """Figures of the thinking in a reply."""

    tokens: int
    """Emitted tokens, including the tokens of the marks and of the space after them."""
    seconds: float
    """Seconds from the start of the first round to the end of the last one with thinking."""
    accepted: tuple[int, int]
    """Accepted drafted tokens inside and outside the thinking."""
    tested: tuple[int, int]
    """Tested drafted tokens inside and outside the thinking."""

    def words(self, *, running: bool) -> str:
        """Number of tokens and duration, in words."""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{'thinking' if running else 'thought'} · {tokens} · {self.seconds:.1f} s"


class Thought:
    """Follows the rounds of a reply."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, bool]] = []
        """Numbers of the first tokens of stretches, by `Reply.starts`, and whether each is thinking."""
        self._silent: int | None = 0
        """Emitted tokens so far, as long as none has text: they may begin a mark. Then None."""
        self._tokens = 0
        self._began: float | None = None
        self._ended = 0.0
        self._accepted, self._tested = [0, 0], [0, 0]

    @property
    def there(self) -> bool:
        """Whether the reply has any thinking."""
        return bool(self._spans)

    @property
    def running(self) -> bool:
        """Whether the last token belongs to the thinking."""
        return self.there and self._spans[-1][1]

    def holds(self, token: int) -> bool:
        """Whether a token belongs to the thinking, by the numbers of `Reply.starts`."""
        stretch = bisect_right(self._spans, (token, True)) - 1
        return stretch >= 0 and self._spans[stretch][1]

    def ends_at(self, token: int) -> bool:
        """Whether the thinking ends before this token."""
        return (token, False) in self._spans

    def add(self, record: Round, first: int, *, own: bool) -> None:
        """Add a round whose first token has the number `first`; only `own` rounds count for the acceptance."""
        if self._began is None:
            self._began = record.at - record.seconds
        flags = record.thinking or (False,) * len(record.said)
        for place, (text, inside) in enumerate(zip(record.said, flags, strict=True)):
            last = place == record.accepted  # it follows what was rejected and discarded
            self._add(text, first + (record.accepted if last else place), inside=inside)
        if own:
            for place in range(record.tested):
                inside = flags[min(place, len(flags) - 1)]
                self._tested[not inside] += 1
                self._accepted[not inside] += place < record.accepted
        if any(record.thinking):
            self._ended = record.at

    def figures(self) -> ThoughtFigures | None:
        """The current figures; None for a reply without thinking."""
        if not self.there:
            return None
        accepted, tested = (self._accepted[0], self._accepted[1]), (self._tested[0], self._tested[1])
        seconds = max(self._ended - (self._began or 0.0), 0.0)
        return ThoughtFigures(self._tokens, seconds, accepted, tested)

    def _add(self, text: str, token: int, *, inside: bool) -> None:
        """Add an emitted token, and the drafted ones before it that are not in the reply."""
        if inside is not self.running:
            self._spans.append((0 if self._silent is not None else token, inside))
            self._tokens += self._silent or 0
        self._silent = None if self._silent is None or self._spans or text else self._silent + 1
        self._tokens += inside
