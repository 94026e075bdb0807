"""Round plan: what is to be verified in a round, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.decoding.proposal import Proposal, Source


@dataclass(slots=True)
class RoundPlan:
    """Drafts to verify in a round, and how they were made."""

    proposal: Proposal
    gammas: list[int]
    """Draft length asked for, per row."""
    adaptive: list[int]
    """Rows (by index) whose γ is chosen by the controller."""
    drafted_buckets: list[list[int]]
    """`buckets` of drafts that were made before the pass."""
    drafter: str | None
    """Name of the drafter; None if no drafter or several drafted."""
    drafted_steps: list[int]
    """Draft steps for each row, of drafts that were made before the pass."""
    planned_sources: list[Sequence[Source]]
    """`sources` of drafts that were made before the pass."""

    @property
    def buckets(self) -> list[list[int]]:
        """Bucket of confidence of each verified token, per adaptive row."""
        grown = self.proposal.grown
        return self.drafted_buckets if grown is None else [(grown.buckets or [])[i] for i in self.adaptive]

    @property
    def steps(self) -> int:
        """Draft steps it took."""
        grown = self.proposal.grown
        return max(self.drafted_steps) if grown is None else grown.steps or 0

    def steps_of(self, i: int) -> int:
        """Draft steps for a row."""
        grown = self.proposal.grown
        if grown is None:
            return self.drafted_steps[i]
        return 0 if grown.free and grown.free[i] else self.steps

    @property
    def sources(self) -> Sequence[Sequence[Source]]:
        """Per row, the drafts that its draft was combined from; empty if it was not combined."""
        grown = self.proposal.grown
        return (grown and grown.sources) or self.planned_sources

    @property
    def drafts(self) -> bool:
        """Whether any row had a draft."""
        return any(self.proposal.lengths)
