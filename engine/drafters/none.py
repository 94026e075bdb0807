"""The drafter that never drafts: every round is a plain one."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drafters.base import Draft
from engine.row import Row


class NoDrafter:
    """Baseline decoding: one token per target pass."""

    name = "none"
    buckets = ()

    def admit(self, row: Row) -> None:
        """Nothing to prepare."""

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:  # noqa: ARG002
        """No tokens."""
        return Draft([[] for _ in rows], [0] * len(rows))

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """Nothing to learn."""

    def release(self, row: Row) -> None:
        """Nothing to give back."""
