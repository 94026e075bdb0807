"""Drafts of constrained rows: the text that has to follow, else what the constraint allows of its drafter's draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Source
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import tree_from
from specchat.engine.sequence.sequence import SequenceState

GRAMMAR = "grammar"
"""Name of drafts of text that has to follow."""
_RATE = 0.95
"""Prior acceptance rate of their tokens: the model may write the same text with other tokens."""


class ConstrainedDrafter(Drafter):
    """A drafter for rows with a constraint. Text that has to follow is drafted first: it takes no draft step.

    Args:
        drafter: of the rows.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name, self._drafter, about = f"{GRAMMAR}+{drafter.name}", drafter, drafter.profile
        buckets = about.buckets or (0,)
        self._bucket = max(buckets) + 1
        self.profile = DrafterProfile(
            (*buckets, self._bucket),
            {**about.expected_rates, self._bucket: _RATE},
            (*about.methods, self._bucket),
            free=True,
            stepless=about.stepless,
        )

    def admit(self, row: SequenceState) -> RowProfile:
        """Start a row."""
        return self._drafter.admit(row)

    def unread(self, row: SequenceState) -> int:
        """Number of tokens that the drafter has to read."""
        return self._drafter.unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read a chunk of text."""
        self._drafter.prefill(rows)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Pass the hidden states on."""
        self._drafter.on_hidden_states(rows, states, lengths)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Pass the accepted tokens on."""
        self._drafter.on_accepted(row, emitted)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """What has to follow where that is known, else what the drafter proposes, without what may not follow."""
        drafts = [self._forced(order) for order in orders]
        free = self._drafter.profile.free
        left = [i for i, order in enumerate(orders) if not drafts[i].tokens and (order.gamma or free)]
        for i, draft in zip(left, self._drafter.propose([orders[i] for i in left]) if left else (), strict=True):
            drafts[i] = replace(_cut(draft, orders[i].row), sources=draft.sources or (Source(self._drafter.name),))
        return drafts

    def release(self, row: SequenceState) -> None:
        """End a row."""
        self._drafter.release(row)

    def _forced(self, order: RowOrder) -> Draft:
        """A chain of what has to follow; empty for nothing, or if it is not worth its verification."""
        row, budget = order.row, order.budget
        assert row.constraint
        if not (budget.repeatable or budget.rates[self._bucket] > budget.passes[1]):
            return Draft()
        tokens = row.constraint.forced(row.tokens)[: row.room if order.free else order.gamma]
        return replace(Draft.chain(tokens, [self._bucket] * len(tokens)), sources=(Source(GRAMMAR),))


def _cut(draft: Draft, row: SequenceState) -> Draft:
    """A draft without the tokens that may not follow, and what follows them."""
    assert row.constraint
    tree, tokens = draft.tree, draft.on_host
    if tree.tests is not None:
        return draft
    kept = row.constraint.allowed(row.tokens, tokens, tree.children)
    if len(kept) == len(tree):
        return draft
    places = {node: place for place, node in enumerate((0, *kept))}
    left = tree_from(tuple(places[tree.parents[node - 1]] for node in kept))
    return replace(
        draft,
        tokens=[tokens[node - 1] for node in kept],
        tree=left,
        q=None if draft.q is None else draft.q[[0, *kept][: left.inner]],
        buckets=[draft.buckets[node - 1] for node in kept] if draft.buckets else (),
    )
