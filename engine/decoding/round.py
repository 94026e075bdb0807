"""Rounds of speculative decoding: draft, score, accept, keep.

The target's cache holds every token of a row but the last. A round feeds that token and the drafted tokens in one pass;
the logits after each node verify its candidates, and those after the last accepted node give the correction or bonus
(Leviathan et al. 2023, Algorithm 1). Rolling back means leaving `SequenceState.cached` at the last accepted token.

Where passes are short, a runner may run several rounds in one call (multi-step scheduling in vLLM): a pass evicts the
host's code and data from the processor's caches, so that work between two passes takes longer than it does once again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.row_drafters import RowDrafters
from specchat.engine.sequence.sequence import SequenceState

Trim = Callable[[Sequence[RowOrder], Sequence[Draft], int], list[Draft]]
"""Shortens drafts to what is worth its verification, in a batch of so many rows."""


class RoundOutcome(NamedTuple):
    """Drafts, outcomes and times of a round."""

    drafts: Sequence[Draft]
    """[B], each with the drafter's fault, if it had one."""
    outcomes: Sequence[Outcome]
    """[B]"""
    draft_s: float
    """Seconds of drafting."""
    verify_s: float
    """Seconds of the target's pass and of acceptance."""

    @property
    def steps(self) -> int:
        """Draft steps of the round."""
        return max(draft.steps for draft in self.drafts)

    @property
    def drafted(self) -> bool:
        """Whether any row had a draft."""
        return any(len(draft.tree) for draft in self.drafts)


class Runner(ABC):
    """Runs the rounds of one target.

    Args:
        drafters: of the rows.
        trim: shortens drafts that were made on the host.
        on_launch: called once per `run`, when a device that computes by itself has all of the work.
    """

    def __init__(self, drafters: RowDrafters, trim: Trim, on_launch: Callable[[], object] = lambda: None) -> None:
        self.drafters, self.trim, self.on_launch = drafters, trim, on_launch

    @abstractmethod
    def run(self, orders: Sequence[RowOrder], max_rounds: int = 1, ends: Collection[int] = ()) -> list[RoundOutcome]:
        """Run one round for rows that are prefilled, or several, one after the other.

        Args:
            orders: [B], the rows and what may be drafted for each.
            max_rounds: maximum number of rounds, for which the cache has blocks; they draft as the first does.
            ends: tokens that end a reply, and with it those rounds.
        """

    @abstractmethod
    def plain_pass(self, rows: Sequence[SequenceState]) -> None:
        """Score and accept without drafts, and keep nothing."""
