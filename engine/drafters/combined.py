"""Two drafters in one: the text itself where it repeats, or repeats other chats, and the head everywhere else.

A long match costs nothing and is nearly always right; the head is right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Source, join
from specchat.engine.decoding.tree import Tree
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.suffix import SURE, SuffixDrafter
from specchat.engine.sequence.sequence import SequenceState

_HEAD = len(SuffixDrafter.profile.buckets)
"""The first bucket of the head."""


class CombinedDrafter(Drafter):
    """Per row and round, one of the two.

    Args:
        head: drafts where the text does not repeat.
        suffix: drafts where its first token continues a long match, and where the head is not asked.
        device: of the head.
    """

    name = "combined"

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter, device: torch.device) -> None:
        self._head = head
        self._suffix = suffix
        of_head, of_suffix = head.profile, suffix.profile
        self.profile = DrafterProfile(
            buckets=(*of_suffix.buckets, *(_HEAD + bucket for bucket in of_head.buckets)),
            later_buckets=tuple(_HEAD + bucket for bucket in of_head.later_buckets),
            expected_rates={
                **of_suffix.expected_rates,
                **{_HEAD + bucket: rate for bucket, rate in of_head.expected_rates.items()},
            },
            default_gamma=of_head.default_gamma,
            proposes_at_zero=True,
        )
        self._device = device

    def warm_up(self) -> float | None:
        """As the head's, which captures nothing twice."""
        return self._head.warm_up()

    def admit(self, row: SequenceState) -> RowProfile:
        """Start a row with both; its drafts are the head's, as those of the suffix drafter cost nothing."""
        of_head = self._head.admit(row)
        self._suffix.admit(row)
        self._note_matches(row)
        if of_head.offers is None:
            return of_head
        offers_of_head = of_head.offers

        def offers(gamma: int) -> tuple[Sequence[int], Tree]:
            buckets, tree = offers_of_head(gamma)
            return [_HEAD + bucket for bucket in buckets], tree

        return replace(of_head, offers=offers)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """For the suffix drafter: the head reads a window of 256 tokens only, with its first draft."""
        self._suffix.prefill(rows)
        self._note_matches(rows[0])

    def reuse_prefix(self, row: SequenceState, source: int, length: int) -> int:
        """As the head."""
        return self._head.reuse_prefix(row, source, length)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """For the head."""
        self._head.on_hidden_states(rows, states, lengths)

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
        sources = repeated.sources or [(Source(self._suffix.name),)] * len(rows)
        if not heads:
            return replace(repeated, steps=0, sources=sources)
        parts: list[tuple[list[int], Draft]] = []
        if texts:
            drafted, buckets = [repeated.tokens[i] for i in texts], [found[i] for i in texts]
            parts.append((texts, Draft.of_chains(drafted, buckets, [sources[i] for i in texts])))
        costs = [_of_head(budgets[i]) for i in heads] if budgets else []
        draft = self._head.propose([rows[i] for i in heads], [gammas[i] for i in heads], costs)
        buckets = [[_HEAD + bucket for bucket in each] for each in draft.buckets or ()]
        steps = max(gammas[i] for i in heads) if draft.steps is None else draft.steps
        from_head = [(Source(self._head.name),)] * len(heads)
        draft = replace(draft, buckets=buckets, steps=steps, sources=from_head)
        if not texts:
            return draft
        return replace(join([*parts, (heads, draft)], len(rows), self._device), steps=steps)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """For the suffix drafter's text."""
        self._suffix.on_accepted(row, emitted)
        self._note_matches(row)

    def release(self, row: SequenceState) -> None:
        """From both."""
        self._head.release(row)
        self._suffix.release(row)

    def _note_matches(self, row: SequenceState) -> None:
        """Where the text repeats for long the head takes no step."""
        row.has_draft = not row.undrafted and self._suffix.has_long_match(row)


def _of_head(budget: Budget | None) -> Budget | None:
    """The same budget by the head's own buckets."""
    if budget is None:
        return None
    rate = budget.rate
    return replace(budget, rate=lambda bucket: rate(_HEAD + bucket))


def build(context: BuildContext, name: str) -> CombinedDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    head, suffix = context.drafters["head"], context.drafters["suffix"]
    assert isinstance(head, HeadDrafter)
    assert isinstance(suffix, SuffixDrafter)
    return CombinedDrafter(head, suffix, context.target.device)
