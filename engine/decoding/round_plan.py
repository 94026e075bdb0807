"""Round plan: what is to be verified in a round, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.decoding.proposal import Proposal, Source


@dataclass(slots=True)
class RoundPlan:
    """What is to be verified in a round, and how it came about."""

    proposal: Proposal
    gammas: list[int]
    """Draft length asked for, per row."""
    adaptive: list[int]
    """Rows (by index) whose γ is chosen by the controller."""
    buckets: list[list[int]]
    """How sure the drafter was of each token to be verified, per adaptive row."""
    drafter: str | None
    """Name of the drafter; None if no drafter or several drafted."""
    drafts: bool
    """Whether any row has a draft."""
    steps: int
    """Draft steps it took."""
    sources: list[Sequence[Source]]
    """Per row, the drafts that its draft was combined from; empty if it was not combined."""
