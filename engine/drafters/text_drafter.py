"""Base of drafters that draft from the text: a predictor per row, which reads the row's tokens as they arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, RowProfile
from specchat.engine.sequence.sequence import SequenceState

Pairs = Iterable[tuple[int, int]]
"""Tokens and their buckets."""


class Predictor(Protocol):
    """Something that knows a text so far."""

    @property
    def tokens(self) -> int:
        """Number of tokens that it has read."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Read the tokens that follow."""

    def predict(self) -> Iterator[tuple[int, int]]:
        """The tokens that are likely to follow, each with its bucket."""


Known = TypeVar("Known", bound=Predictor)


class TextDrafter(Drafter, Generic[Known]):
    """A drafter that knows nothing but the text. Drafts are certain (one-hot q).

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
    """

    predictor: type[Known]
    chunk: int
    """Prompt tokens read between two rounds."""

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        self._ends, self._never = ends, never
        self._texts: dict[str, Known] = {}

    def text(self, row: SequenceState) -> Known:
        """The state of a row's text, which is read only now: many rounds do not ask for it."""
        text = self._texts[row.request.request_id]
        if text.tokens < len(row.tokens):
            text.extend(row.tokens[text.tokens :])
        return text

    def admit(self, row: SequenceState) -> RowProfile:
        """Read the beginning of the prompt."""
        self._texts[row.request.request_id] = self.predictor()
        self.prefill([row])
        return RowProfile()

    def unread(self, row: SequenceState) -> int:
        """Tokens that are not read; once the reply has begun, 0 up to a chunk, as a draft reads these first."""
        unread = len(row.tokens) - self._texts[row.request.request_id].tokens
        return unread if unread > (self.chunk if row.emitted else 0) else 0

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read the next `chunk` tokens of the first row."""
        row = rows[0]
        text = self._texts[row.request.request_id]
        text.extend(row.tokens[text.tokens : text.tokens + self.chunk])

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains that the predictor of each row expects."""
        return [Draft.chain(*self._draft(self.text(order.row).predict(), order.gamma), order.gamma) for order in orders]

    def release(self, row: SequenceState) -> None:
        """Drop the state."""
        del self._texts[row.request.request_id]

    def _draft(self, pairs: Pairs, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens and their buckets: to the end of a reply, or to what does not occur in replies."""
        tokens: list[int] = []
        buckets: list[int] = []
        for token, bucket in islice(pairs, count):
            if token in self._never:
                break
            tokens.append(token)
            buckets.append(bucket)
            if token in self._ends:
                break
        return tokens, buckets
