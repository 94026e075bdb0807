"""Two drafters in one: the text itself where it repeats, or repeats other chats, and the head everywhere else.

A long match costs nothing and is nearly always right; the head is right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specchat.engine.decoding.drafter import Budgets, Drafter, RowProfile
from specchat.engine.decoding.proposal import Draft, Source
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.head.drafter import HeadDrafter
from specchat.engine.drafters.suffix import SURE, SuffixDrafter
from specchat.engine.drafters.tree_growth import draft_apart
from specchat.engine.sequence.sequence import SequenceState


class CombinedDrafter(Drafter):
    """Per row and round, one of the two.

    Args:
        head: drafts where the text does not repeat.
        suffix: drafts where its first token continues a long match, and where the head is not asked.
        device: of the head.
    """

    name = "combined"

    def __init__(self, head: HeadDrafter, suffix: SuffixDrafter, device: torch.device) -> None:
        self._head, self._suffix, self._device = head, suffix, device
        of_head, of_suffix = head.profile, suffix.profile
        self._first = len(of_head.buckets)
        """The first bucket of the suffix drafter, after those of the head."""
        names = (suffix.name, head.name)
        self._rules = suffix.rules and suffix.rules._replace(first=self._first, least=SURE, names=names)
        self.kernel_head = head.kernel_head
        rates = {self._first + bucket: rate for bucket, rate in of_suffix.expected_rates.items()}
        self.profile = replace(
            of_head,
            buckets=(*of_head.buckets, *self._shifted(of_suffix.buckets)),
            expected_rates={**of_head.expected_rates, **rates},
            methods=(0, self._first),
            proposes_at_zero=True,
        )

    def warm_up(self) -> float | None:
        """Warm up the head; returns the time of its draft step."""
        return self._head.warm_up()

    def admit(self, row: SequenceState) -> RowProfile:
        """Start a row with both; its drafts are the head's, as those of the suffix drafter cost nothing."""
        of_head = self._head.admit(row)
        self._suffix.admit(row)
        known = self._stored_bucket if self._by_kernels([row]) else self._sure_bucket
        return replace(of_head, sure_bucket=partial(known, row))

    def unread(self, row: SequenceState) -> int:
        """Tokens that the suffix drafter has not read."""
        return self._suffix.unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """For the suffix drafter: the head reads a window of 256 tokens only, with its first draft."""
        self._suffix.prefill(rows)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """For the head."""
        self._head.on_hidden_states(rows, states, lengths)

    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets = ()) -> Draft:
        """The suffix drafter's draft for the rows where it starts with a long match, the head's for the others.

        γ of adaptive rows with such a match is 0 (`RowProfile.sure_bucket`). Where other chats have none, the kernels
        find those of the texts themselves.
        """
        if self._by_kernels(rows) and not any(map(self._suffix.of_other_chats, rows)):
            if self._rules and not any(gammas):
                return self._suffix.grow(rows, gammas, budgets, self._rules)
            texts = [self._suffix.text(row).memory for row in rows]
            return self._head.propose(rows, gammas, budgets, texts, self._rules)
        return self._propose_on_host(rows, gammas, budgets)

    def _by_kernels(self, rows: Sequence[SequenceState]) -> bool:
        """Whether the kernels draft for all of these rows, from their texts too."""
        return self._rules is not None and all(map(self._head.grows, rows))

    def _propose_on_host(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets) -> Draft:
        repeats = [
            not gamma or (not row.adaptive and self._sure_bucket(row) is not None)
            for row, gamma in zip(rows, gammas, strict=True)
        ]

        def draft(from_text: bool, mine: Sequence[int]) -> Draft:
            own = [rows[i] for i in mine]
            if from_text:
                text = self._suffix.continuations(own, [row.room for row in own])
                buckets = [self._shifted(found) for found in text.buckets or ()]
                sources = text.sources or [(Source(self._suffix.name),)] * len(own)
                return replace(text, buckets=buckets, sources=sources, steps=0)
            lengths, costs = [gammas[i] for i in mine], [budgets[i] for i in mine] if budgets else []
            found = self._head.propose(own, lengths, costs)
            if any(repeats):
                found = found.settled()
            steps = max(lengths) if found.steps is None else found.steps
            return replace(found, sources=[(Source(self._head.name),)] * len(own), steps=steps)

        return draft_apart(repeats, draft, self._device)

    def release(self, row: SequenceState) -> None:
        """From both."""
        self._head.release(row)
        self._suffix.release(row)

    def _sure_bucket(self, row: SequenceState) -> int | None:
        bucket = self._suffix.long_match(row)
        return None if bucket is None else self._first + bucket

    def _stored_bucket(self, row: SequenceState) -> int | None:
        stored = self._suffix.of_other_chats(row)
        return self._first + stored[0][1] if stored else None

    def _shifted(self, buckets: Sequence[int]) -> list[int]:
        """Buckets of the suffix drafter among all."""
        return [self._first + bucket for bucket in buckets]


def build(context: BuildContext, name: str) -> CombinedDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return CombinedDrafter(context.drafters["head"], context.drafters["suffix"], context.target.device)
