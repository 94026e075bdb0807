"""Two drafters in one: the text itself where it repeats, or repeats other chats, and the head everywhere else.

A long match costs nothing and is nearly always right; the head is right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Offers, join
from specchat.engine.decoding.tree import Tree
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.suffix import SURE, SuffixDrafter
from specchat.engine.round import Proposer
from specchat.engine.sequence.sequence import SequenceState

_HEAD = len(SuffixDrafter.buckets)
"""The first bucket of the head."""


class CombinedDrafter(Drafter):
    """Per row and round, one of the two.

    Args:
        head: drafts where the text does not repeat.
        suffix: drafts where its first token continues a long match, and where the head is not asked.
        device: of the head.
    """

    name = "combined"
    always = True

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter, device: torch.device) -> None:
        self._head = head
        self._suffix = suffix
        self.steady = head.steady
        self.buckets = (*SuffixDrafter.buckets, *(_HEAD + bucket for bucket in head.buckets))
        """Those of the suffix drafter, then those of the head."""
        self.later = tuple(_HEAD + bucket for bucket in head.later)
        of_head = {_HEAD + bucket: rate for bucket, rate in head.expected.items()}
        self.expected = {**SuffixDrafter.expected, **of_head}
        self._device = device
        self._from_text: set[str] = set()
        """Requests whose last draft is the suffix drafter's."""

    def time_step(self) -> float | None:
        """As the head's."""
        return self._head.time_step()

    def admit(self, row: SequenceState) -> None:
        """A row starts with both."""
        self._head.admit(row)
        self._suffix.admit(row)

    def unread(self, row: SequenceState) -> int:
        """As the suffix drafter: the head reads a window of 256 tokens only."""
        return self._suffix.unread(row)

    def read(self, rows: Sequence[SequenceState]) -> None:
        """For the suffix drafter."""
        self._suffix.read(rows)

    def lend(self, row: SequenceState, source: int, length: int) -> int:
        """As the head can."""
        return self._head.lend(row, source, length)

    def absorb(
        self, rows: Sequence[SequenceState], tapped: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """For the head."""
        self._head.absorb(rows, tapped, lengths)

    def grows(self, row: SequenceState) -> bool:
        """As the head's drafts do; those of the suffix drafter cost nothing to make."""
        return self._head.grows(row)

    def offers(self, row: SequenceState) -> Offers | None:
        """As the head's: what the suffix drafter gives costs nothing, so it is not asked for."""
        of_head = self._head.offers(row)
        if of_head is None:
            return None

        def offers(gamma: int) -> tuple[Sequence[int], Tree]:
            buckets, tree = of_head(gamma)
            return [_HEAD + bucket for bucket in buckets], tree

        return offers

    def is_sure(self, row: SequenceState) -> bool:
        """Where the text repeats for long: the head takes no step then."""
        return self._suffix.has_long_match(row)

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """The suffix drafter's draft for the rows where it starts with a long match, the head's for the others."""
        repeated = self._suffix.propose(rows, [row.room for row in rows])
        assert isinstance(repeated.tokens, list)
        assert repeated.buckets is not None
        found = repeated.buckets
        heads = [i for i, gamma in enumerate(gammas) if gamma and not (found[i] and found[i][0] >= SURE)]
        texts = [i for i in range(len(rows)) if i not in heads]
        self._from_text.difference_update(rows[i].request.request_id for i in heads)
        self._from_text.update(rows[i].request.request_id for i in texts)
        if not heads:
            return replace(repeated, steps=0)
        parts: list[tuple[list[int], Draft]] = []
        if texts:
            lengths = [repeated.lengths[i] for i in texts]
            parts.append((texts, Draft([repeated.tokens[i] for i in texts], lengths, None, [found[i] for i in texts])))
        costs = [_of_head(budgets[i]) for i in heads] if budgets else []
        draft = self._head.propose([rows[i] for i in heads], [gammas[i] for i in heads], costs)
        buckets = [[_HEAD + bucket for bucket in each] for each in draft.buckets or ()]
        steps = max(gammas[i] for i in heads) if draft.steps is None else draft.steps
        draft = replace(draft, buckets=buckets, steps=steps)
        if not texts:
            return draft
        return replace(join([*parts, (heads, draft)], len(rows), self._device), steps=steps)

    def proposers(self, row: SequenceState, drafted: Sequence[int]) -> tuple[Proposer, ...]:
        """The one of the two that drafted, or other chats."""
        if row.request.request_id in self._from_text:
            named = self._suffix.proposers(row, drafted)
            return named or (Proposer(self._suffix.name, len(drafted), len(drafted)),)
        return (Proposer(self._head.name, len(drafted), len(drafted)),)

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """For the suffix drafter's text."""
        self._suffix.observe(row, emitted)

    def release(self, row: SequenceState) -> None:
        """From both."""
        self._from_text.discard(row.request.request_id)
        self._head.release(row)
        self._suffix.release(row)


def _of_head(budget: Budget | None) -> Budget | None:
    """The same budget by the head's own buckets."""
    if budget is None:
        return None
    rate = budget.rate
    return replace(budget, rate=lambda bucket: rate(_HEAD + bucket))
