"""Pearson's χ² test of observed against expected counts, with a Poisson test for rare outcomes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

LEAST_EXPECTED = 5.0
"""Outcomes with smaller expected counts are pooled, as the statistic would not be χ²-distributed."""
Outcome = TypeVar("Outcome", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Result of one test."""

    statistic: float
    degrees: int
    """Degrees of freedom: categories - 1; 0 if one outcome is nearly certain or all are rare."""
    p_value: float
    """Probability of a sample at least this extreme under the distribution."""


def chi_square(sample: Iterable[Outcome], probabilities: Mapping[Outcome, float]) -> ChiSquare:
    """Test whether a sample comes from a distribution.

    Args:
        sample: outcomes; those without a probability count as the remainder.
        probabilities: of single outcomes; their sum is at most 1, and the rest is the remainder's.
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
    else:  # too rare for a separate category; tested separately, as the target may never emit it
        surprise = _at_least(others, pooled)
    degrees = max(0, len(cells) - 1)
    # Conditional on the number of rare outcomes, the others follow their own probabilities.
    scale = sum(count for count, _ in cells) / sum(often for _, often in cells) if cells else 1.0
    statistic = sum((count - often * scale) ** 2 / (often * scale) for count, often in cells if scale)
    chance = _tail(statistic, degrees) if degrees and scale else 1.0
    # Two tests of one sample: Bonferroni doubles the smaller p-value.
    return ChiSquare(statistic, degrees, min(1.0, 2 * min(chance, surprise)) if surprise < 1 else chance)


def _at_least(count: int, expected: float) -> float:
    """Probability of at least `count` events under a Poisson distribution with mean `expected`."""
    if count == 0:
        return 1.0
    if expected == 0:
        return 0.0
    return float(torch.special.gammainc(torch.tensor(float(count)).double(), torch.tensor(expected).double()))


def _tail(statistic: float, degrees: int) -> float:
    """Probability that χ² with `degrees` degrees of freedom is at least `statistic`."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
