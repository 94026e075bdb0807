"""Two drafters in one: the text itself where it repeats, the head everywhere else.

A long n-gram match costs nothing and is nearly always right; the head is right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.drafters.base import Draft, Drafter
from engine.drafters.head import HeadDrafter
from engine.drafters.ngram import MAX_ORDER, NGramDrafter
from engine.drafters.proposal import join
from engine.forecast import Offers
from engine.row import Row
from engine.tree import Tree

_HEAD = MAX_ORDER + 1
"""The first bucket of the head."""


class CombinedDrafter(Drafter):
    """Per row and round, one of the two.

    Args:
        head: drafts where the text does not repeat.
        ngram: drafts where its first token continues the longest n-gram it looks for, and where the head is not asked.
        context: tokens a row can hold.
        device: of the head.
    """

    name = "combined"
    buckets = (*NGramDrafter.buckets, *(_HEAD + bucket for bucket in HeadDrafter.buckets))
    """Those of the n-gram, then those of the head."""
    later = tuple(_HEAD + bucket for bucket in HeadDrafter.later)
    always = True

    def __init__(self, head: HeadDrafter, ngram: NGramDrafter, context: int, device: torch.device) -> None:
        self._head = head
        self._ngram = ngram
        self.steady = head.steady
        self._context = context
        self._device = device

    def admit(self, row: Row) -> None:
        """A row starts with both."""
        self._head.admit(row)
        self._ngram.admit(row)

    def lend(self, row: Row, source: int, length: int) -> int:
        """As the head can."""
        return self._head.lend(row, source, length)

    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """For the head."""
        self._head.absorb(rows, tapped)

    def offers(self, row: Row) -> Offers:
        """As the head's: what the n-gram drafts costs nothing, so it is not asked for."""
        of_head = self._head.offers(row)

        def offers(gamma: int) -> tuple[Sequence[int], Tree]:
            buckets, tree = of_head(gamma)
            return [_HEAD + bucket for bucket in buckets], tree

        return offers

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """The n-gram's draft for the rows where it starts with its longest match, the head's for the others."""
        rooms = [
            row.draft_room(self._context) if row.request.gamma is None else gamma
            for row, gamma in zip(rows, gammas, strict=True)
        ]
        repeated = self._ngram.propose(rows, rooms)
        assert isinstance(repeated.tokens, list)
        assert repeated.buckets is not None
        found = repeated.buckets
        heads = [i for i, gamma in enumerate(gammas) if gamma and not (found[i] and found[i][0] == MAX_ORDER)]
        texts = [i for i in range(len(rows)) if i not in heads]
        parts: list[tuple[list[int], Draft]] = []
        if texts:
            lengths = [repeated.lengths[i] for i in texts]
            parts.append((texts, Draft([repeated.tokens[i] for i in texts], lengths, None, [found[i] for i in texts])))
        if heads:
            draft = self._head.propose([rows[i] for i in heads], [gammas[i] for i in heads])
            buckets = [[_HEAD + bucket for bucket in each] for each in draft.buckets or ()]
            parts.append((heads, replace(draft, buckets=buckets)))
        whole = join(parts, len(rows), self._device)
        return replace(whole, steps=max((gammas[i] for i in heads), default=0))

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """For the n-gram's tables."""
        self._ngram.observe(row, emitted)

    def release(self, row: Row) -> None:
        """From both."""
        self._head.release(row)
        self._ngram.release(row)
