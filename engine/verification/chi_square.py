"""Pearson's χ² of counted outcomes against expected ones; what is too rare for it by its own Poisson tail."""

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
    """Of freedom: categories less one; 0 where one outcome is all but certain, or all are rare."""
    p_value: float
    """The chance of a sample at least this far off if it does come from the distribution."""


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
    others, pooled = total - sum(count for count, _ in cells), max(0.0, total - sum(expected.values()))
    surprise = 1.0
    if pooled >= LEAST_EXPECTED:
        cells.append((others, pooled))
    else:  # too rare for a category of its own, but not to be forgotten: the target may never say such a thing
        surprise = _at_least(others, pooled)
    degrees = max(0, len(cells) - 1)
    # Given how many fell outside, those inside are spread as their own probabilities say.
    scale = sum(count for count, _ in cells) / sum(often for _, often in cells) if cells else 1.0
    statistic = sum((count - often * scale) ** 2 / (often * scale) for count, often in cells if scale)
    chance = _tail(statistic, degrees) if degrees and scale else 1.0
    # Two looks at one sample: the smaller p-value counts twice.
    return ChiSquare(statistic, degrees, min(1.0, 2 * min(chance, surprise)) if surprise < 1 else chance)


def _at_least(count: int, expected: float) -> float:
    """The chance of at least so many rare events where `expected` are expected (Poisson)."""
    if count == 0:
        return 1.0
    if expected == 0:
        return 0.0
    return float(torch.special.gammainc(torch.tensor(float(count)).double(), torch.tensor(expected).double()))


def _tail(statistic: float, degrees: int) -> float:
    """The chance that χ² with so many degrees of freedom is at least the statistic."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
