"""What drafters of the text itself share: a predictor per row, which reads the row's tokens as they come.

Of an encoder-decoder they read the source first: much of a summary occurs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from specchat.engine.decoding.drafter import Drafter, RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.sequence.sequence import SequenceState


class Predictor(Protocol):
    """Something that knows a text so far."""

    tokens: int
    """How many it has read."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Read the tokens that follow."""


class ChainPredictor(Predictor, Protocol):
    """A predictor of chains."""

    def predict(self, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens and their buckets."""


Known = TypeVar("Known", bound=Predictor)


Chains = TypeVar("Chains", bound=ChainPredictor)


class TextDrafter(Drafter, Generic[Known]):
    """A drafter that knows nothing but the text.

    Args:
        make: gives a predictor that has read nothing.
    """

    chunk: int
    """Prompt tokens read between two rounds."""

    def __init__(self, make: Callable[[], Known]) -> None:
        self._make = make
        self._texts: dict[str, Known] = {}

    def text(self, row: SequenceState) -> Known:
        """The state of a row's text."""
        return self._texts[row.request.request_id]

    def admit(self, row: SequenceState) -> RowProfile:
        """Read the beginning of the prompt."""
        self._texts[row.request.request_id] = self._make()
        self.prefill([row])
        return RowProfile()

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read the next `chunk` tokens of the first row."""
        row = rows[0]
        text, whole = self.text(row), [*row.source, *row.tokens] if row.source else row.tokens
        text.extend(whole[text.tokens : text.tokens + self.chunk])
        row.undrafted = len(whole) - text.tokens

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Read the new tokens."""
        self.text(row).extend(emitted)

    def release(self, row: SequenceState) -> None:
        """Drop the state."""
        del self._texts[row.request.request_id]


class ChainTextDrafter(TextDrafter[Chains]):
    """A text drafter of chains; drafts are certain (one-hot q)."""

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """What the predictor of each row expects."""
        found = [self.text(row).predict(gamma) for row, gamma in zip(rows, gammas, strict=True)]
        tokens = [tokens for tokens, _ in found]
        return Draft.of_chains(tokens, [buckets for _, buckets in found])
