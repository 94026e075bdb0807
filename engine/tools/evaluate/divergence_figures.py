"""How far two targets are apart over texts, with intervals by bootstrap over the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import median

from specchat.engine.tools.evaluate.divergence import Divergence
from specchat.engine.tools.evaluate.intervals import Interval, interval


@dataclass(frozen=True, slots=True)
class DivergenceFigures:
    """Two targets over some texts."""

    category: str
    """Empty for all of them."""
    texts: int
    tokens: int
    differing: int
    """Places where their likeliest tokens differ."""
    same: float
    """Share of the places where their likeliest tokens are the same."""
    same_interval: Interval
    kl: float
    """Mean divergence of the other from the first, nats per token."""
    kl_interval: Interval
    whole: int
    """Texts in which their likeliest tokens never differ."""
    first: float | None
    """Median over the texts of the tokens before the first difference; None where most texts have no difference."""
    first_low: float | None
    first_high: float | None
    """The interval of `first`; None as there."""
    gap: float | None
    """Median top-2 gap of the first target where they differ; None where they do not."""
    largest_gap: float | None

    @classmethod
    def of(cls, category: str, found: Sequence[Divergence]) -> DivergenceFigures:
        """Sum up some texts."""
        gaps = [each.gaps[place] for each in found for place in each.places]
        firsts = [float(each.places[0]) if each.places else inf for each in found]
        low, high = interval(firsts, _middle)
        return cls(
            category=category,
            texts=len(found),
            tokens=sum(len(each.ours) for each in found),
            differing=len(gaps),
            same=_same(found),
            same_interval=interval(found, _same),
            kl=_kl(found),
            kl_interval=interval(found, _kl),
            whole=sum(map(isinf, firsts)),
            first=_finite(_middle(firsts)),
            first_low=_finite(low),
            first_high=_finite(high),
            gap=median(gaps) if gaps else None,
            largest_gap=max(gaps) if gaps else None,
        )


def _same(found: Sequence[Divergence]) -> float:
    tokens = sum(len(each.ours) for each in found)
    return 1 - sum(len(each.places) for each in found) / tokens


def _kl(found: Sequence[Divergence]) -> float:
    return sum(sum(each.kl) for each in found) / sum(len(each.kl) for each in found)


def _middle(values: Sequence[float]) -> float:
    """The median, of an even number the lower of the two in the middle: one of them may be infinite."""
    return sorted(values)[(len(values) - 1) // 2]


def _finite(value: float) -> float | None:
    return None if isinf(value) else value
