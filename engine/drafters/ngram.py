"""Drafting from the text itself: what followed these tokens last time follows them again.

Frequency tables of the tokens seen so far (prompt and reply), as in akunu, "Speculative Decoding with N-grams":
orders 2 to 4, the longest context first with back-off, predictions chained. A draft is certain (one-hot q): among the
continuations of a context the most frequent is taken, the latest seen if several are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from engine.drafters.base import Draft
from engine.row import Row

MAX_ORDER = 4
"""Longest n-gram: a context of three tokens and the one that followed."""
MAX_HISTORY = 512
"""Tokens that contexts are taken from; the tables keep the counts of everything seen."""


class NGramPredictor:
    """The tables of one request."""

    def __init__(self) -> None:
        self._history: deque[int] = deque(maxlen=MAX_HISTORY)
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._best: dict[tuple[int, ...], int] = {}

    def update(self, tokens: Iterable[int]) -> None:
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

    def predict(self, count: int) -> list[int]:
        """Up to `count` tokens, each predicted from the history and the ones predicted before it."""
        context = self._recent()
        predicted: list[int] = []
        while len(predicted) < count:
            token = self._continuation(context)
            if token is None:
                break
            predicted.append(token)
            context = (*context, token)[1 - MAX_ORDER :]
        return predicted

    def _recent(self) -> tuple[int, ...]:
        history = self._history
        return tuple(history[i] for i in range(-min(MAX_ORDER - 1, len(history)), 0))

    def _continuation(self, context: tuple[int, ...]) -> int | None:
        for start in range(len(context)):
            token = self._best.get(context[start:])
            if token is not None:
                return token
        return None


class NGramDrafter:
    """One predictor per row."""

    name = "ngram"

    def __init__(self) -> None:
        self._predictors: dict[str, NGramPredictor] = {}

    def admit(self, row: Row) -> None:
        """Seed the tables with the prompt."""
        predictor = self._predictors[row.request.request_id] = NGramPredictor()
        predictor.update(row.tokens)

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """The chained predictions of each row."""
        tokens = [
            self._predictors[row.request.request_id].predict(gamma) for row, gamma in zip(rows, gammas, strict=True)
        ]
        return Draft(tokens, [len(t) for t in tokens])

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """Count the new tokens."""
        self._predictors[row.request.request_id].update(emitted)

    def release(self, row: Row) -> None:
        """Drop the row's tables."""
        del self._predictors[row.request.request_id]
