"""Two drafters in one: the text itself where it repeats, the head everywhere else.

A long n-gram match costs nothing and is nearly always right; the head is right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.drafters.base import Draft, Drafter
from engine.drafters.head import HeadDrafter
from engine.drafters.ngram import MAX_ORDER, NGramDrafter
from engine.drafters.proposal import merge
from engine.row import Row

_HEAD_STEPS = 5
"""Most tokens the head drafts where γ adapts: it is asked before its chances are known."""
_PLACES = 4
"""The head's tokens are told apart by their place, up to this one."""


class CombinedDrafter(Drafter):
    """Per row and round, one of the two.

    Args:
        head: drafts where the text does not repeat.
        ngram: drafts where its first token continues the longest n-gram it looks for.
        device: of the head.
    """

    name = "combined"
    buckets = (*NGramDrafter.buckets, *range(MAX_ORDER + 1, MAX_ORDER + 1 + _PLACES))
    """Those of the n-gram, then the head's first token, its second, …"""

    def __init__(self, head: HeadDrafter, ngram: NGramDrafter, device: torch.device) -> None:
        self._head = head
        self._ngram = ngram
        self._device = device

    def admit(self, row: Row) -> None:
        """A row starts with both."""
        self._head.admit(row)
        self._ngram.admit(row)

    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """For the head."""
        self._head.absorb(rows, tapped)

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """The n-gram's draft for the rows where it starts with its longest match, the head's for the others."""
        repeated = self._ngram.propose(rows, gammas)
        assert isinstance(repeated.tokens, list)
        assert repeated.buckets is not None
        sure = [bool(orders) and orders[0] == MAX_ORDER for orders in repeated.buckets]
        buckets = repeated.buckets
        parts: list[tuple[list[int], Draft]] = []
        if any(sure):
            mine = [i for i, is_sure in enumerate(sure) if is_sure]
            parts.append((mine, Draft([repeated.tokens[i] for i in mine], [repeated.lengths[i] for i in mine])))
        if not all(sure):
            mine = [i for i, is_sure in enumerate(sure) if not is_sure]
            steps = [min(gammas[i], _HEAD_STEPS) if rows[i].adaptive else gammas[i] for i in mine]
            draft = self._head.propose([rows[i] for i in mine], steps)
            parts.append((mine, draft))
            for i, length in zip(mine, draft.lengths, strict=True):
                buckets[i] = [MAX_ORDER + min(place, _PLACES) for place in range(1, length + 1)]
        whole = merge(parts, len(rows), self._device)
        return Draft(whole.tokens, whole.lengths, whole.q, buckets)

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """For the n-gram's tables."""
        self._ngram.observe(row, emitted)

    def release(self, row: Row) -> None:
        """From both."""
        self._head.release(row)
        self._ngram.release(row)
