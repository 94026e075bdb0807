"""What a round costs on this machine, learnt from the rounds it has run. All times are seconds.

A pass over T tokens per row is modelled as

    verify(T) = plain · exp(jump·[T > 1] + slope·(T − 1))

level until the hardware runs out of bandwidth to hide in, rising after that; `jump` is what it costs to leave the
matrix-vector kernels of a one-token pass. In logarithms that is linear, and the jitter of a shared machine, which
multiplies, becomes additive with a constant spread: a Kalman filter with three states does it, in microseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

_WINDOW = 15
"""Measurements a median is taken of."""
_PRIOR_MEAN = (0.0, 0.02)
"""jump, slope: between a GPU (0) and a small CPU (0.03)."""
_PRIOR_VARIANCE = (100.0, 0.15**2, 0.03**2)
"""Of level, jump, slope. The level's is so large that the first measurement decides."""
_DRIFT = (2.5e-4, 1e-6, 1e-8)
"""Variance added per pass: the level follows clock speed and load, the shape hardly moves."""
_NOISE = 0.2**2
"""Variance of log seconds around the model."""
_HELD_UP = 2.0
"""Standard deviations beyond which a slow pass was held up by something else and counts no further."""
_TOO_FAST = 3.0
"""Standard deviations beyond which a fast pass makes the level start anew."""
_PRIOR_DRAFT = 0.05
"""Cost ratio c of a drafter that has never run: low enough to be tried."""

V = TypeVar("V")


class Costs:
    """The cost table of one engine. Feed every round to `observe`; estimates are, in effect, medians.

    Args:
        padded: the width that a pass of some width is run with.
    """

    def __init__(self, padded: Callable[[int], int] = lambda width: width) -> None:
        self._padded = padded
        self._passes: dict[int, _PassFit] = {}
        self._rest: dict[int, _Median] = {}
        self._steps: dict[str, dict[int, _Median]] = {}

    def observe(
        self, rows: int, width: int, drafter: str | None, steps: int, draft_s: float, verify_s: float, rest_s: float
    ) -> None:
        """Learn from one round.

        Args:
            rows: requests in the batch.
            width: T, tokens per row in the verifying pass: the longest draft + 1.
            drafter: the one that drafted; None where none or several did, and `draft_s` cannot be attributed.
            steps: draft steps it was asked for (the longest γ).
            draft_s: time of all draft steps.
            verify_s: time of the pass and of the acceptance.
            rest_s: everything else.
        """
        if rows not in self._passes:
            self._passes[rows] = _PassFit(_nearest(self._passes, rows))
        self._passes[rows].observe(self._padded(width), verify_s)
        self._rest.setdefault(rows, _Median()).add(rest_s)
        if drafter is not None and steps > 0:
            self._steps.setdefault(drafter, {}).setdefault(rows, _Median()).add(draft_s / steps)

    def verify(self, rows: int, width: int) -> float:
        """One pass over `width` tokens for each of `rows` rows."""
        return self.verify_up_to(rows, width)[-1]

    def verify_up_to(self, rows: int, width: int) -> list[float]:
        """`verify` for the widths 1 … `width`."""
        fit = _nearest(self._passes, rows) or _PassFit(None)
        seconds = fit.seconds_up_to(self._padded(width))
        return [seconds[self._padded(each) - 1] for each in range(1, width + 1)]

    def doubt(self, rows: int, width: int) -> float:
        """Standard deviation of log(verify(width) / verify(1)): by which factor, roughly, the ratio may be wrong."""
        fit = self._passes.get(rows) or _PassFit(None)
        return fit.doubt(self._padded(width))

    def draft_step(self, drafter: str, rows: int) -> float:
        """One more token drafted for each of `rows` rows."""
        step = _nearest(self._steps.get(drafter, {}), rows)
        return step.value if step else _PRIOR_DRAFT * self.verify(rows, 1)

    def rest(self, rows: int) -> float:
        """What a round costs beside drafting and verification, whatever its γ."""
        rest = _nearest(self._rest, rows)
        return rest.value if rest else 0.0


class _PassFit:
    """log verify(T) = level + jump·[T > 1] + slope·(T − 1), as a Kalman filter over (level, jump, slope)."""

    def __init__(self, like: _PassFit | None) -> None:
        """Start from the shape of another batch size where there is one."""
        self._state: list[float] = list(like._state) if like else [0.0, *_PRIOR_MEAN]
        self._p = [[_PRIOR_VARIANCE[i] if i == j else 0.0 for j in range(3)] for i in range(3)]

    def observe(self, width: int, seconds: float) -> None:
        """One Kalman step, the innovation cut off where the pass was held up."""
        state, p = self._state, self._p
        for i in range(3):
            p[i][i] += _DRIFT[i]
        jumped, x = float(width > 1), float(width - 1)
        surprise = math.log(max(seconds, 1e-9)) - (state[0] + jumped * state[1] + x * state[2])
        p_phi = [row[0] + jumped * row[1] + x * row[2] for row in p]
        variance = p_phi[0] + jumped * p_phi[1] + x * p_phi[2] + _NOISE
        if surprise < -_TOO_FAST * math.sqrt(variance):
            # Nothing runs faster than it can: what the level was learnt from must have been held up.
            p[0][0] += _PRIOR_VARIANCE[0]
            p_phi[0] += _PRIOR_VARIANCE[0]
            variance += _PRIOR_VARIANCE[0]
        surprise = min(surprise, _HELD_UP * math.sqrt(variance))
        for i in range(3):
            gain = p_phi[i] / variance
            state[i] += gain * surprise
            for j in range(3):
                p[i][j] -= gain * p_phi[j]

    def seconds_up_to(self, width: int) -> list[float]:
        """The median times of passes over 1, 2, … tokens; they never fall."""
        level, jump, slope = self._state
        times = [math.exp(level)]
        factor, growth = math.exp(max(0.0, jump)), math.exp(max(0.0, slope))
        for _ in range(width - 1):
            times.append(times[-1] * factor * growth)
            factor = 1.0
        return times

    def doubt(self, width: int) -> float:
        """Standard deviation of the logarithm of time(width) / time(1)."""
        p, x = self._p, width - 1
        return math.sqrt(p[1][1] + 2 * x * p[1][2] + x * x * p[2][2])


class _Median:
    """The median of the last measurements; the lower one of two, since noise mostly adds."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._window.append(value)
        self.value = sorted(self._window)[(len(self._window) - 1) // 2]


def _nearest(table: Mapping[int, V], rows: int) -> V | None:
    """The entry for this batch size, or for the one nearest to it."""
    if rows in table:
        return table[rows]
    return table[min(table, key=lambda r: abs(r - rows))] if table else None
