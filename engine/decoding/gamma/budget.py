"""What a row's draft may cost, for drafters that decide while they draft."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Budget:
    """Prices in tokens: what has to be gained on average for a thing to pay."""

    passes: Sequence[float]
    """Of verifying 0, 1, … drafted tokens."""
    step: float
    """Of one more draft step, this row's share."""
    rates: Mapping[int, float]
    """The chance that a token is accepted where the one before it was, by bucket, in ascending order."""
    line: int = 0
    """Positions that are drafted for whatever they cost: one token each at least."""
    repeatable: bool = False
    """Whether the draft may depend on nothing but the row."""
    again: Mapping[int, float] = field(default_factory=dict)
    """`rates` after a token of the same bucket; empty if they are the same."""

    @cached_property
    def numbers(self) -> array[float]:
        """The prices of passes, and the two rates of buckets 0, 1, …, for the kernels."""
        return array("d", (*self.passes, *self.rates.values(), *(self.again or self.rates).values()))


Budgets = Sequence[Budget | None]
"""Of the rows of a batch; None where measured costs may not be used."""
