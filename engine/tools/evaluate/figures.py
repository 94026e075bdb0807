"""Figures of drafters over texts, with intervals by bootstrap over the texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from specchat.engine.stats.theory import speedup_of_rounds
from specchat.engine.tools.evaluate.rounds import Course

_RESAMPLES = 1000
_OUTSIDE = 0.025
"""Share of the resamples on each side of an interval."""
_Of = TypeVar("_Of")


class Interval(NamedTuple):
    """A figure's 95 % interval: percentiles of its bootstrap (Efron and Tibshirani 1993, section 13.3)."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


def interval(texts: Sequence[_Of], figure: Callable[[Sequence[_Of]], float]) -> Interval:
    """The interval of a figure of texts; the same texts give the same one."""
    dice = random.Random(0)
    values = sorted(figure(dice.choices(texts, k=len(texts))) for _ in range(_RESAMPLES))
    return Interval(values[int(_OUTSIDE * _RESAMPLES)], values[int((1 - _OUTSIDE) * _RESAMPLES) - 1])


@dataclass(frozen=True, slots=True)
class Figures:
    """One drafter at one γ over some texts."""

    drafter: str
    gamma: int
    category: str
    """Empty for all texts."""
    texts: int
    tested: int
    accepted: float
    """For sampled texts the expected number: the sum of β."""
    by_position: tuple[float, ...]
    """Accepted / tested at draft position 1, 2, …"""
    alpha: float
    """Accepted / tested; for sampled texts the mean of Σ min(p, q)."""
    alpha_interval: Interval
    tau: float
    """Tokens emitted / rounds."""
    tau_interval: Interval
    c: float
    """Time of a draft step / time of a plain pass of the target."""
    predicted_speedup: float
    """By Theorem 3.8, from α, c and the draft lengths that were run."""

    @classmethod
    def of(cls, drafter: str, gamma: int, category: str, courses: Sequence[Course]) -> Figures:
        """Sum up the courses of one drafter."""
        tested, lengths = Counter[int](), Counter[int]()
        accepted: dict[int, float] = {}
        for course in courses:
            tested += course.tested
            for place, count in course.accepted.items():
                accepted[place] = accepted.get(place, 0) + count
            lengths += course.lengths
        alpha = _alpha(courses)
        steps = sum(course.timed_steps for course in courses)
        pass_s = sum(course.pass_s * course.timed_steps for course in courses)
        c = sum(course.draft_s for course in courses) / pass_s if steps and pass_s else 0.0
        return cls(
            drafter=drafter,
            gamma=gamma,
            category=category,
            texts=len(courses),
            tested=sum(tested.values()),
            accepted=sum(accepted.values()),
            by_position=tuple(accepted.get(place, 0) / tested[place] for place in sorted(tested)),
            alpha=alpha,
            alpha_interval=interval(courses, _alpha),
            tau=_tau(courses),
            tau_interval=interval(courses, _tau),
            c=c,
            predicted_speedup=speedup_of_rounds(alpha, lengths, c),
        )


def only_one(ours: Sequence[bool], theirs: Sequence[bool]) -> list[int]:
    """Positions of tokens that one drafter predicted and the other did not."""
    return [place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one and not other]


def _alpha(courses: Sequence[Course]) -> float:
    tested = sum(course.tested.total() for course in courses)
    accepted = sum(sum(course.accepted.values()) for course in courses)
    return min(accepted / tested, 1.0) if tested else 0.0  # a sum of float32 shares may be a little above 1


def _tau(courses: Sequence[Course]) -> float:
    return sum(course.emitted for course in courses) / sum(course.rounds for course in courses)
