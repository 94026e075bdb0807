"""Pass curve: the time of a forward pass against its width, learnt from noisy passes.

The width is T, tokens per sequence, or the tokens of all sequences where a pass costs what they do.

Machines differ in kind: level up to 17 tokens where a pass is bound by reading the weights, rising from some width on
where arithmetic binds it, rising from the second token on where kernels for one token are the fastest. So the curve has
no formula: log seconds at a few widths (`KNOTS`), straight lines between them. In logarithms the jitter of a shared
machine, which multiplies, becomes additive with a constant spread, and a Kalman filter over the knots does it, in
microseconds. Neighbouring knots are correlated: a pass at one width says a little about the others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import median_low
from typing import Final

KNOTS: Final = (1, 2, 3, 5, 9, 13, 17, 33, 65)
"""Widths whose log times are the filter's state; beyond the last, time is in proportion to width."""
_SLOPE = 0.02
"""Growth of log seconds per token expected at first: between a GPU (0) and a small CPU (0.03)."""
_LEVEL_VARIANCE = 100.0
"""So large that the first measurement decides."""
_JUMP_VARIANCE = 0.15**2
"""Of leaving the kernels for one token."""
_SLOPE_VARIANCE = 0.03**2
"""Of the slope behind the first knot."""
_STEEP: Final = 17
"""Width from which on time is expected to grow in proportion at most."""
_BEND_VARIANCE = 0.03**2
"""Of what the slope changes by at each later knot."""
_LEVEL_DRIFT = 2.5e-4
"""Variance added per pass: clock speed and load change."""
_SHAPE_DRIFT = 1e-6
"""Variance added per pass to the step between two knots: the shape hardly moves."""
_NOISE = 0.3**2
"""Variance of log seconds around the curve."""
_HELD_UP = 2.0
"""Standard deviations beyond which a slow pass was held up by something else and counts no further."""
_TOO_FAST = 3.0
"""Standard deviations beyond which a fast pass makes the level start anew."""

_N = len(KNOTS)


class PassCurve:
    """The curve of one batch size. Lists, not arrays: beside a pass, which leaves nothing in the caches, each call into
    NumPy is felt.

    Args:
        like: a curve of another batch size, to start from its shape.
    """

    def __init__(self, like: PassCurve | None = None) -> None:
        self._state: list[float] = like._state if like else [_SLOPE * place for place in _PLACES]
        self._p = _PRIOR

    def observe(self, width: int, seconds: Sequence[float]) -> None:
        """One Kalman step for passes of one width, each innovation cut off where the pass was held up."""
        count, (left, right, share) = len(seconds), _between(width)
        p = [
            [each + count * drift for each, drift in zip(*rows, strict=True)]
            for rows in zip(self._p, _DRIFT, strict=True)
        ]
        p_phi = [(1 - share) * row[left] + share * row[right] for row in p]
        known = (1 - share) * p_phi[left] + share * p_phi[right]
        expected = math.log(_beyond(width)) + self._at(left, right, share)
        surprises = [math.log(max(each, 1e-9)) - expected for each in seconds]
        if min(surprises) < -_TOO_FAST * math.sqrt(known + _NOISE):
            # Nothing runs faster than it can: what the level was learnt from must have been held up.
            p = [[each + _LEVEL_VARIANCE for each in row] for row in p]
            p_phi = [each + _LEVEL_VARIANCE for each in p_phi]
            known += _LEVEL_VARIANCE
        most = min(_HELD_UP * math.sqrt(known + _NOISE), median_low(surprises) + _HELD_UP * math.sqrt(_NOISE))
        surprise = sum(min(each, most) for each in surprises) / count
        gain = [each / (known + _NOISE / count) for each in p_phi]
        self._state = [each + more * surprise for each, more in zip(self._state, gain, strict=True)]
        self._p = [
            [each - more * phi for each, phi in zip(row, p_phi, strict=True)] for row, more in zip(p, gain, strict=True)
        ]

    def seconds_up_to(self, width: int) -> list[float]:
        """The median times of passes over 1, 2, … tokens; they never fall."""
        times = (math.exp(self._at(*place)) * beyond for place, beyond in _up_to(width))
        return list(accumulate(times, max))

    def doubt(self, width: int, beside: int = 1) -> float:
        """Standard deviation of the logarithm of time(width) / time(beside)."""
        one, other = _between(width), _between(beside)
        variance = self._covariance(one, one) + self._covariance(other, other) - 2 * self._covariance(one, other)
        return math.sqrt(max(0.0, variance))

    def _at(self, left: int, right: int, share: float) -> float:
        """Log seconds between two knots."""
        return (1 - share) * self._state[left] + share * self._state[right]

    def _covariance(self, one: tuple[int, int, float], other: tuple[int, int, float]) -> float:
        """Of the log times at two places between knots."""
        (left, right, share), (a, b, part) = one, other
        ahead, behind = self._p[left], self._p[right]
        return (1 - share) * ((1 - part) * ahead[a] + part * ahead[b]) + share * (
            (1 - part) * behind[a] + part * behind[b]
        )


@lru_cache(maxsize=1024)
def _between(width: int) -> tuple[int, int, float]:
    """The last knot that is no wider, the one behind it, and how far on the way to that a width is."""
    left = bisect_right(KNOTS, width) - 1
    if left == _N - 1:
        return left, left, 0.0
    return left, left + 1, (width - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])


def _beyond(width: int) -> float:
    """By which factor a width is beyond the last knot."""
    return max(width / KNOTS[-1], 1.0)


@lru_cache
def _up_to(width: int) -> list[tuple[tuple[int, int, float], float]]:
    """`_between` and `_beyond` of the widths 1, 2, …"""
    return [(_between(each), _beyond(each)) for each in range(1, width + 1)]


def _prior(i: int, j: int) -> float:
    """Covariance of the log times at two knots before any pass was measured: a slope that may change at every knot."""
    slope = _PLACES[i] * _PLACES[j] * _SLOPE_VARIANCE
    bends = sum((_PLACES[i] - place) * (_PLACES[j] - place) for place in _PLACES[1 : min(i, j)]) * _BEND_VARIANCE
    return _LEVEL_VARIANCE + (_JUMP_VARIANCE if i and j else 0.0) + slope + bends


_PLACES: Final = tuple(min(knot, _STEEP) - 1 + _STEEP * math.log(max(knot / _STEEP, 1)) for knot in KNOTS)
"""Of the knots, on a scale on which log time is expected to be a straight line."""
_PRIOR: Final = [[_prior(i, j) for j in range(_N)] for i in range(_N)]
_DRIFT: Final = [[_LEVEL_DRIFT + _SHAPE_DRIFT * min(i, j) for j in range(_N)] for i in range(_N)]
