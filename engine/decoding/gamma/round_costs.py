"""What rounds of one batch size cost, in plain rounds (γ = 0) of the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from specchat.engine.decoding.gamma.latency_model import LatencyModel
from specchat.engine.request import MAX_GAMMA

_MOST = 64
"""Drafted tokens of all rows up to which costs are worked out; beyond, they grow as they did last."""


class RoundCosts:
    """A view of the cost table: passes and the rest as they are now, single draft steps as they are when asked for.

    The size of a round's drafts is the tokens of the longest one where passes are padded, else those of all rows.

    Args:
        latency: the cost table.
        rows: B.
        limit: the longest draft of a row.
    """

    def __init__(self, latency: LatencyModel, rows: int, limit: int) -> None:
        self.rows, self.ragged = rows, latency.ragged
        self._latency = latency
        self._doubts: dict[int, float] = {}
        """By size, the standard deviation of the logarithm of its pass against a plain one, when last looked at."""
        self._each: dict[int, list[float]] = {}
        """`verifying_each` as far as it was asked for."""
        self._drafting: dict[tuple[str, int], float] = {}
        """`drafting`, likewise."""
        plain, most = latency.plain_width(rows), max(limit, min(limit * rows, _MOST)) if self.ragged else limit
        seconds = latency.verify_up_to(rows, plain + most)[plain - 1 :]
        rest = latency.rest(rows)
        self.plain_s = seconds[0] + rest
        more = max(0.0, latency.rest(rows, drafted=True) - rest)
        self.passes = [1.0, *((each + rest + more) / self.plain_s for each in seconds[1:])]
        """Rounds by the size of their drafts, 0, 1, 2, …, what drafting takes not counted."""

    def verifying(self, size: int) -> float:
        """What verifying drafts of a size adds to a round."""
        beyond = size - len(self.passes) + 1
        if beyond <= 0:
            return self.passes[size] - 1.0
        return self.passes[-1] - 1.0 + beyond * (self.passes[-1] - self.passes[-2])

    def verifying_each(self, tokens: int) -> list[float]:
        """What verifying 0, 1, … `MAX_GAMMA` times as many tokens adds to a round."""
        if tokens not in self._each:
            self._each[tokens] = [self.verifying(tokens * count) for count in range(MAX_GAMMA + 1)]
        return self._each[tokens]

    def size(self, lengths: Sequence[int]) -> int:
        """Of drafts of these lengths."""
        return sum(lengths) if self.ragged else max(lengths, default=0)

    def in_doubt(self, size: int, speedup: float) -> bool:
        """Whether a speedup, by a pass over so much more than nothing, is within the error of what is known."""
        # Looked at anew only where it was too little known before: the more passes, the smaller the error.
        least = log(max(1.0, speedup))
        if size in self._doubts and self._doubts[size] < least:
            return False
        self._doubts[size] = self._latency.doubt(self.rows, self._latency.plain_width(self.rows) + size)
        return self._doubts[size] >= least

    def step(self, drafter: str) -> float:
        """A draft step for all rows."""
        return self._latency.draft_step(drafter, self.rows) / self.plain_s

    def further_step(self, drafter: str) -> float:
        """A draft step behind another."""
        return self._latency.further_step(drafter, self.rows) / self.plain_s

    def drafting(self, drafter: str, steps: int) -> float:
        """So many draft steps, as they were when first asked for."""
        if not steps:
            return 0.0
        known = self._drafting.get((drafter, steps))
        if known is None:
            first = self._latency.first_step(drafter, self.rows) / self.plain_s
            known = self._drafting[drafter, steps] = first + (steps - 1) * self.further_step(drafter)
        return known
