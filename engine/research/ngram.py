"""Drafters of the text's own n-grams: what followed these tokens last time follows them again.

`ngram` (prompt lookup), as in akunu, "Speculative Decoding with N-grams": frequency tables of the tokens seen so far
(prompt and reply), orders 2 to 4, the longest context first with back-off, predictions chained; the most frequent
continuation of a context, the latest seen if several are.

`copy`, the simplest of its kind (Leviathan et al. 2023, section 3.6: "an approximation model that simply copies tokens
from the context in case we find a matching prefix"): continues as the text did after the last tokens occurred before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.suffix import TextDrafter

MAX_ORDER = 4
"""Longest n-gram: a context of three tokens and the next token."""
_LONGEST = MAX_ORDER - 1
"""Tokens of the longest context, and of the longest match that is copied from."""
MAX_HISTORY = 512
"""Tokens that contexts are taken from; the tables keep the counts of everything seen."""


class NGramPredictor:
    """The tables of one text."""

    def __init__(self) -> None:
        self._history: deque[int] = deque(maxlen=MAX_HISTORY)
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._best: dict[tuple[int, ...], int] = {}
        self.tokens = 0
        """Tokens so far."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Count each token as the continuation of the contexts before it."""
        for token in tokens:
            recent = self._recent()
            for length in range(1, len(recent) + 1):
                context = recent[-length:]
                counts = self._counts.setdefault(context, {})
                counts[token] = counts.get(token, 0) + 1
                best = self._best.get(context)
                if best is None or counts[token] >= counts[best]:
                    self._best[context] = token
            self._history.append(token)
            self.tokens += 1

    def predict(self) -> Iterator[tuple[int, int]]:
        """Tokens, each after the history and the ones before it, with the order (2 to 4) of the n-gram it is from."""
        context = self._recent()
        while length := next((n for n in range(len(context), 0, -1) if context[-n:] in self._best), 0):
            token = self._best[context[-length:]]
            yield token, length + 1
            context = (*context, token)[-_LONGEST:]

    def _recent(self) -> tuple[int, ...]:
        history = self._history
        return tuple(history[i] for i in range(-min(_LONGEST, len(history)), 0))


class CopyPredictor:
    """A text, and where each run of up to `_LONGEST` tokens stood last in it."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Note where the runs before each token end, which can now be copied from."""
        for token in tokens:
            for length in range(1, min(_LONGEST, len(self._text)) + 1):
                self._behind[tuple(self._text[-length:])] = len(self._text)
            self._text.append(token)

    def predict(self) -> Iterator[tuple[int, int]]:
        """Tokens that followed the longest match, each with the length of that match."""
        for length in range(min(_LONGEST, len(self._text)), 0, -1):
            place = self._behind.get(tuple(self._text[-length:]))
            if place is not None:
                yield from ((token, length) for token in self._text[place:])
                return


class NGramDrafter(TextDrafter[NGramPredictor]):
    """One predictor per row."""

    name = "ngram"
    profile = DrafterProfile(buckets=tuple(range(2, _LONGEST + 2)))
    """A token's bucket is the order of the n-gram that predicted it."""
    predictor = NGramPredictor
    chunk = 2048
    """Takes some 25 ms."""


class CopyDrafter(TextDrafter[CopyPredictor]):
    """One text per row."""

    name = "copy"
    profile = DrafterProfile(buckets=tuple(range(1, _LONGEST + 1)))
    """A token's bucket is the length of the match."""
    predictor = CopyPredictor
    chunk = 4096
    """Takes some 10 ms."""


def build(context: BuildContext, name: str) -> NGramDrafter | CopyDrafter:
    """The drafter for an engine."""
    kind = NGramDrafter if name == NGramDrafter.name else CopyDrafter
    return kind(context.model.eos_ids, context.never)
