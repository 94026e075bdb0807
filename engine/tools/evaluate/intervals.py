"""Intervals of figures by bootstrap over texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

_RESAMPLES = 1000
_OUTSIDE = 0.025
"""Share of the resamples on each side of an interval."""
_Of = TypeVar("_Of")


class Interval(NamedTuple):
    """A figure's 95 % interval: percentiles of its bootstrap (Efron and Tibshirani 1993, section 13.3)."""

    low: float
    high: float


def interval(texts: Sequence[_Of], figure: Callable[[Sequence[_Of]], float]) -> Interval:
    """The interval of a figure of texts; the same texts give the same one."""
    dice = random.Random(0)
    values = sorted(figure(dice.choices(texts, k=len(texts))) for _ in range(_RESAMPLES))
    return Interval(values[int(_OUTSIDE * _RESAMPLES)], values[int((1 - _OUTSIDE) * _RESAMPLES) - 1])
