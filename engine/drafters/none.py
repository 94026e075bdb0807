"""The drafter that never drafts: every round is a plain one."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drafters.base import Draft, Drafter
from engine.row import Row


class NoDrafter(Drafter):
    """Baseline decoding: one token per target pass."""

    name = "none"

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:  # noqa: ARG002
        """No tokens."""
        return Draft([[] for _ in rows], [0] * len(rows))
