"""Pass curve: the time of a forward pass against its width T (tokens per sequence), learnt from noisy passes.

Machines differ in kind: level up to 17 tokens where a pass is bound by reading the weights, rising from some width on
where arithmetic binds it, rising from the second token on where kernels for one token are the fastest. So the curve has
no formula: log seconds at a few widths (`KNOTS`), straight lines between them. In logarithms the jitter of a shared
machine, which multiplies, becomes additive with a constant spread, and a Kalman filter over the knots does it, in
microseconds. Neighbouring knots are correlated: a pass at one width says a little about the others.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import Final

KNOTS: Final = (1, 2, 3, 5, 9, 13, 17)
"""Widths whose log times are the filter's state; beyond the last the line goes on."""
_SLOPE = 0.02
"""Growth of log seconds per token expected at first: between a GPU (0) and a small CPU (0.03)."""
_LEVEL_VARIANCE = 100.0
"""So large that the first measurement decides."""
_JUMP_VARIANCE = 0.15**2
"""Of leaving the kernels for one token."""
_SLOPE_VARIANCE = 0.03**2
"""Of the slope behind the first knot."""
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
_Weights = tuple[tuple[int, float], ...]


class PassCurve:
    """The curve of one batch size.

    Args:
        like: a curve of another batch size, to start from its shape.
    """

    def __init__(self, like: PassCurve | None = None) -> None:
        self._state: list[float] = list(like._state) if like else [_SLOPE * (knot - 1) for knot in KNOTS]
        self._p = [[_prior(i, j) for j in range(_N)] for i in range(_N)]

    def observe(self, width: int, seconds: float) -> None:
        """One Kalman step, the innovation cut off where the pass was held up."""
        state, p = self._state, self._p
        for i in range(_N):
            for j in range(_N):
                p[i][j] += _LEVEL_DRIFT + _SHAPE_DRIFT * min(i, j)
        weights = _weights(width)
        surprise = math.log(max(seconds, 1e-9)) - self._log_seconds(weights)
        p_phi = [sum(row[k] * weight for k, weight in weights) for row in p]
        variance = sum(p_phi[k] * weight for k, weight in weights) + _NOISE
        if surprise < -_TOO_FAST * math.sqrt(variance):
            # Nothing runs faster than it can: what the level was learnt from must have been held up.
            for i in range(_N):
                for j in range(_N):
                    p[i][j] += _LEVEL_VARIANCE
            p_phi = [each + _LEVEL_VARIANCE for each in p_phi]
            variance += _LEVEL_VARIANCE
        surprise = min(surprise, _HELD_UP * math.sqrt(variance))
        for i in range(_N):
            gain = p_phi[i] / variance
            state[i] += gain * surprise
            for j in range(_N):
                p[i][j] -= gain * p_phi[j]

    def seconds_up_to(self, width: int) -> list[float]:
        """The median times of passes over 1, 2, … tokens; they never fall."""
        logs = [self._log_seconds(_weights(each)) for each in range(1, width + 1)]
        return [math.exp(each) for each in accumulate(logs, max)]

    def doubt(self, width: int) -> float:
        """Standard deviation of the logarithm of time(width) / time(1)."""
        weights = ((0, -1.0), *_weights(width))
        return math.sqrt(max(0.0, sum(a * b * self._p[i][j] for i, a in weights for j, b in weights)))

    def _log_seconds(self, weights: _Weights) -> float:
        return sum(self._state[k] * weight for k, weight in weights)


@lru_cache
def _weights(width: int) -> _Weights:
    """The knots that the log time of a width is interpolated from, with their weights."""
    if width in KNOTS:
        return ((KNOTS.index(width), 1.0),)
    right = next((k for k, knot in enumerate(KNOTS) if knot > width), _N - 1)
    share = (width - KNOTS[right - 1]) / (KNOTS[right] - KNOTS[right - 1])
    return ((right - 1, 1 - share), (right, share))


def _prior(i: int, j: int) -> float:
    """Covariance of the log times at two knots before any pass was measured: a slope that may change at every knot."""
    slope = (KNOTS[i] - 1) * (KNOTS[j] - 1) * _SLOPE_VARIANCE
    bends = sum((KNOTS[i] - knot) * (KNOTS[j] - knot) for knot in KNOTS[1 : min(i, j)]) * _BEND_VARIANCE
    return _LEVEL_VARIANCE + (_JUMP_VARIANCE if i and j else 0.0) + slope + bends
