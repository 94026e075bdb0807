"""The drafter that never drafts: every round is a plain one."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft


class NoDrafter(Drafter):
    """Baseline decoding: one token per target pass."""

    name = "none"

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],  # noqa: ARG002
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """No tokens."""
        return Draft([[] for _ in rows], [0] * len(rows))
