"""N-gram drafter (prompt lookup): drafts from the text itself: what followed these tokens last time follows them again.

Frequency tables of the tokens seen so far (prompt and reply), as in akunu, "Speculative Decoding with N-grams":
orders 2 to 4, the longest context first with back-off, predictions chained. A draft is certain (one-hot q): among the
continuations of a context the most frequent is taken, the latest seen if several are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.text_drafter import ChainTextDrafter

MAX_ORDER = 4
"""Longest n-gram: a context of three tokens and the next token."""
MAX_HISTORY = 512
"""Tokens that contexts are taken from; the tables keep the counts of everything seen."""


class NGramPredictor:
    """The tables of one request.

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
    """

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        self._ends = ends
        self._never = never
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

    def predict(self, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens, each predicted from the history and the ones predicted before it.

        Returns:
            The tokens, and the order (2 to 4) of the n-gram each came from.
        """
        context = self._recent()
        tokens: list[int] = []
        orders: list[int] = []
        while len(tokens) < count:
            length = next((n for n in range(len(context), 0, -1) if context[-n:] in self._best), None)
            if length is None:
                break
            token = self._best[context[-length:]]
            if token in self._never:
                break
            tokens.append(token)
            orders.append(length + 1)
            if token in self._ends:
                break
            context = (*context, token)[1 - MAX_ORDER :]
        return tokens, orders

    def _recent(self) -> tuple[int, ...]:
        history = self._history
        return tuple(history[i] for i in range(-min(MAX_ORDER - 1, len(history)), 0))


class NGramDrafter(ChainTextDrafter[NGramPredictor]):
    """One predictor per row; the arguments are those of `NGramPredictor`."""

    name = "ngram"
    profile = DrafterProfile(buckets=tuple(range(2, MAX_ORDER + 1)))
    """A token's bucket is the order of the n-gram that predicted it."""
    chunk = 2048
    """Some 25 ms."""

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        super().__init__(lambda: NGramPredictor(ends, never))


def build(context: BuildContext, name: str) -> NGramDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return NGramDrafter(context.model.eos_ids, context.never)
