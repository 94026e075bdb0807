"""Pearson's χ² of counted outcomes against expected ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

LEAST_EXPECTED = 5.0
"""Outcomes expected less often are pooled: below that the statistic is not distributed as χ²."""
Outcome = TypeVar("Outcome", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """The result of one test."""

    statistic: float
    degrees: int
    """Of freedom: categories less one; 0 where everything had to be pooled and nothing can be said."""
    p_value: float
    """The chance of a statistic at least this large if the sample does come from the distribution."""


def chi_square(sample: Iterable[Outcome], probabilities: Mapping[Outcome, float]) -> ChiSquare:
    """Test whether a sample comes from a distribution.

    Args:
        sample: outcomes; those without a probability of their own belong to the remainder.
        probabilities: of single outcomes; together at most 1, what is left being the remainder's.
    """
    counts: dict[Outcome | None, int] = {}
    total = 0
    for outcome in sample:
        key = outcome if probabilities.get(outcome, 0.0) > 0 else None
        counts[key] = counts.get(key, 0) + 1
        total += 1
    expected = {outcome: total * p for outcome, p in probabilities.items() if total * p >= LEAST_EXPECTED}
    cells = [(counts.get(outcome, 0), often) for outcome, often in expected.items()]
    pooled = total - sum(often for _, often in cells)
    if pooled >= LEAST_EXPECTED:
        cells.append((total - sum(count for count, _ in cells), pooled))
    elif cells:  # too little for a category of its own: it joins the rarest one
        rarest = min(range(len(cells)), key=lambda i: cells[i][1])
        others = total - sum(count for count, _ in cells)
        cells[rarest] = (cells[rarest][0] + others, cells[rarest][1] + pooled)
    degrees = max(0, len(cells) - 1)
    if not degrees:
        return ChiSquare(0.0, 0, 1.0)
    statistic = sum((count - often) ** 2 / often for count, often in cells)
    return ChiSquare(statistic, degrees, _tail(statistic, degrees))


def _tail(statistic: float, degrees: int) -> float:
    """The chance that χ² with so many degrees of freedom is at least the statistic."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
