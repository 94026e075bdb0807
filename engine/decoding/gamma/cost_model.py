"""Cost model: what rounds cost on this machine, learned from the rounds that it runs.

A round consists of draft steps, one verification pass, and the rest (work on the host). Passes have a curve of time
against width; draft steps and the rest have medians. Times are in seconds, in `RoundCosts` in plain rounds (γ = 0).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median, median_low
from typing import Final, TypeVar

import numpy as np

from specchat.engine.request import MAX_GAMMA

_KNOTS: Final = np.array([1, 2, 3, 5, 9, 13, 17, 33, 65])
"""Widths whose log times are estimated; straight lines between them, proportional to width after the last."""
_NOISE = 0.3**2
"""Variance of log seconds around the curve, on a shared machine."""
_OUTLIER = 2.0
"""Standard deviations after which a slow pass counts no further: something else delayed it."""
_TOO_FAST = 3.0
"""Standard deviations below the curve after which its level is learned anew: what set it was delayed."""
_LEVEL = 100.0
"""Prior variance of the level: so large that the first pass decides."""
_DRIFT = 2.5e-4
"""Variance of the level added per pass: clock speed and load change."""
_SLOPE = 0.02
"""Prior mean of the growth of log seconds per token: between a GPU (0) and a small CPU (0.03)."""
_JUMP_VARIANCE, _SLOPE_VARIANCE, _BEND_VARIANCE = 0.15**2, 0.03**2, 0.03**2
"""Prior variances of the step from one token to two, of the slope, and of each change of slope at a knot."""
_PROPORTIONAL: Final = 17
"""Width from which on time is expected to grow in proportion to width at most."""
_WINDOW = 15
"""Measurements per median."""
_UNKNOWN_STEP = 0.05
"""Time of a draft step / time of a plain pass, of a drafter that has not run: low enough to be tried."""
_MOST_WAITING = 32
"""Passes after which the curves are updated at the latest: together they take less time than one by one."""
_REFRESH = 1 / 32, 48
"""Measurements after which `RoundCosts` are computed again: a share of all so far, and the maximum."""
_MOST_TOKENS = 64
"""Drafted tokens of a batch up to which costs are computed; costs of more are extrapolated."""

_T = TypeVar("_T")
_X: Final = np.minimum(_KNOTS, _PROPORTIONAL) - 1 + _PROPORTIONAL * np.log(np.maximum(_KNOTS / _PROPORTIONAL, 1))
"""Positions of the knots on a scale on which log time is expected to be a straight line."""
_BENDS: Final = np.maximum(_X[:, None] - _X[None, 1:-1], 0)
_PRIOR: Final = (
    _LEVEL
    + _JUMP_VARIANCE * np.outer(_X > 0, _X > 0)
    + _SLOPE_VARIANCE * np.outer(_X, _X)
    + _BEND_VARIANCE * _BENDS @ _BENDS.T
)
"""Covariance of the log times at the knots before any measurement."""


class PassCurve:
    """Time of a pass against its width, for one batch size: a Kalman filter over log seconds at `_KNOTS`.

    Args:
        like: curve of another batch size, whose shape is the prior mean.
    """

    def __init__(self, like: PassCurve | None = None) -> None:
        self._log_s = like._log_s if like else _SLOPE * _X
        self._covariance = _PRIOR

    def observe(self, width: int, seconds: Sequence[float]) -> None:
        """Update with passes of one width."""
        weights, count = _interpolation(width), len(seconds)
        covariance = self._covariance + _DRIFT * count
        offset = math.log(max(width / int(_KNOTS[-1]), 1.0)) + float(weights @ self._log_s)
        errors = [math.log(max(each, 1e-9)) - offset for each in seconds]
        if min(errors) < -_TOO_FAST * math.sqrt(weights @ covariance @ weights + _NOISE):
            covariance = covariance + _LEVEL
        known = weights @ covariance
        variance = float(known @ weights)
        most = min(
            _OUTLIER * math.sqrt(variance + _NOISE),
            median_low(errors) + _OUTLIER * math.sqrt(_NOISE),
        )
        gain = known / (variance + _NOISE / count)
        self._log_s = self._log_s + gain * (sum(min(each, most) for each in errors) / count)
        self._covariance = covariance - np.outer(gain, known)

    def seconds_up_to(self, width: int) -> list[float]:
        """Estimates for widths 1, 2, …, which never decrease."""
        widths = np.arange(1, width + 1)
        seconds = np.exp(np.interp(widths, _KNOTS, self._log_s)) * np.maximum(widths / _KNOTS[-1], 1.0)
        return list(accumulate(seconds.tolist(), max))

    def doubt(self, width: int, other: int) -> float:
        """Standard deviation of the logarithm of the ratio of the times of two widths."""
        difference = _interpolation(width) - _interpolation(other)
        return math.sqrt(max(0.0, float(difference @ self._covariance @ difference)))


class CostModel:
    """Costs of one engine's rounds.

    Args:
        padded: the width that a pass of some width is run with.
        ragged: whether a pass costs what its tokens do, whichever rows they are in. Its width is then their number;
            otherwise it is T, the tokens of the longest row.
    """

    def __init__(self, padded: Callable[[int], int] = lambda width: width, *, ragged: bool = False) -> None:
        self._padded = padded
        self.ragged = ragged
        self._measurements = 0
        self._curves: dict[int, PassCurve] = {}
        """By batch size."""
        self._waiting: dict[tuple[int, int], list[float]] = defaultdict(list)
        """Passes not yet learned from: seconds by rows and padded width."""
        self._measured: set[tuple[int, int]] = set()
        """Rows and padded widths of all passes so far."""
        self._medians: dict[tuple[str, object], dict[int, deque[float]]] = defaultdict(_windows)
        """Latest measurements of draft steps and of the rest of rounds, by batch size."""
        self._costs: tuple[int, RoundCosts] | None = None

    def observe(self, rows: int, width: int, drafter: str | None, steps: int, draft_s: float, verify_s: float) -> None:
        """Learn from one round.

        Args:
            rows: requests in the batch.
            width: of the verification pass.
            drafter: None if several drafted, and `draft_s` cannot be attributed.
            steps: draft steps.
            draft_s: time of all draft steps.
            verify_s: time of the pass and of the acceptance.
        """
        self.observe_pass(rows, width, verify_s)
        if drafter is None or not steps:
            return
        if steps == 1:
            self.observe_step(drafter, rows, draft_s)
        else:
            first = self._median("first", drafter, rows) or draft_s / steps
            self._add("further", drafter, rows, max(0.0, draft_s - first) / (steps - 1))

    def observe_pass(self, rows: int, width: int, seconds: float) -> None:
        """Learn from one pass."""
        self._measurements += 1
        waiting = self._waiting[rows, self._padded(width)]
        waiting.append(seconds)
        self._measured.add((rows, self._padded(width)))
        if len(waiting) >= _MOST_WAITING:
            self._update_curves()

    def observe_step(self, drafter: str, rows: int, seconds: float) -> None:
        """Learn from one draft step."""
        self._add("first", drafter, rows, seconds)

    def observe_rest(self, rows: int, drafted: bool, seconds: float) -> None:
        """Learn what a round took besides drafting and verification, by whether anything was drafted."""
        self._add("rest", drafted, rows, seconds)

    def plain_width(self, rows: int) -> int:
        """Width of a pass without drafts."""
        return rows if self.ragged else 1

    def verify_up_to(self, rows: int, width: int) -> list[float]:
        """Time of a pass over `rows` rows, for widths 1 … `width`."""
        self._update_curves()
        seconds = (_nearest(self._curves, rows) or PassCurve()).seconds_up_to(self._padded(width))
        return seconds if self.ragged else [seconds[self._padded(each) - 1] for each in range(1, width + 1)]

    def doubt(self, rows: int, width: int) -> float:
        """Standard deviation of log(time of a pass / time of a plain one); infinite before the first plain pass."""
        if (rows, self._padded(self.plain_width(rows))) not in self._measured:
            return math.inf
        return self._curves.get(rows, PassCurve()).doubt(self._padded(width), self._padded(self.plain_width(rows)))

    def draft(self, drafter: str, rows: int) -> tuple[float, float]:
        """Times of the first draft step of a round and of each further one, for `rows` rows."""
        first, further = (self._median(which, drafter, rows) for which in ("first", "further"))
        plain = self.plain_width(rows)
        known = first or further or _UNKNOWN_STEP * self.verify_up_to(rows, plain)[-1]
        return first or known, known if further is None else further

    def rest(self, rows: int, *, drafted: bool = False) -> float:
        """What a round takes besides drafting and verification."""
        return self._median("rest", drafted, rows) or self._median("rest", not drafted, rows) or 0.0

    def of_batch(self, rows: int) -> RoundCosts:
        """Costs of rounds with this batch size, computed again when noticeably more is known."""
        share, most = _REFRESH
        if self._costs is not None:
            computed_at, costs = self._costs
            if costs.rows == rows and self._measurements <= computed_at + min(share * self._measurements, most):
                return costs
        self._costs = self._measurements, RoundCosts(self, rows)
        return self._costs[1]

    def _update_curves(self) -> None:
        for (rows, width), seconds in self._waiting.items():
            if rows not in self._curves:
                self._curves[rows] = PassCurve(_nearest(self._curves, rows))
            self._curves[rows].observe(width, seconds)
        self._waiting.clear()

    def _add(self, kind: str, of: object, rows: int, seconds: float) -> None:
        self._measurements += 1
        self._medians[kind, of][rows].append(seconds)

    def _median(self, kind: str, of: object, rows: int) -> float | None:
        window = _nearest(self._medians[kind, of], rows)
        return median(window) if window else None


class RoundCosts:
    """Costs of rounds with one batch size, in plain rounds (γ = 0).

    The size of a round's drafts is the number of their tokens where passes are ragged, else the length of the longest.
    """

    def __init__(self, model: CostModel, rows: int) -> None:
        self.rows, self.ragged, self._model = rows, model.ragged, model
        plain = model.plain_width(rows)
        most = max(MAX_GAMMA, min(MAX_GAMMA * rows, _MOST_TOKENS)) if model.ragged else MAX_GAMMA
        seconds = model.verify_up_to(rows, plain + most)[plain - 1 :]
        rest = model.rest(rows)
        more = max(0.0, model.rest(rows, drafted=True) - rest)
        self._plain_s = seconds[0] + rest
        self._added = [0.0, *((each + more - seconds[0]) / self._plain_s for each in seconds[1:])]
        self._steps: dict[str, tuple[float, float]] = {}
        self._doubts: dict[int, float] = {}

    def size(self, lengths: Sequence[int]) -> int:
        """Size of drafts of these lengths."""
        return sum(lengths) if self.ragged else max(lengths, default=0)

    def verifying(self, size: int) -> float:
        """What verification of drafts of a size adds to a round."""
        beyond = size - len(self._added) + 1
        if beyond <= 0:
            return self._added[size]
        return self._added[-1] + beyond * (self._added[-1] - self._added[-2])

    def doubt(self, size: int) -> float:
        """Standard deviation of the logarithm of the time of a pass with drafts of a size / of a plain one."""
        if size not in self._doubts:
            self._doubts[size] = self._model.doubt(self.rows, self._model.plain_width(self.rows) + size)
        return self._doubts[size]

    def drafting(self, drafter: str, steps: int) -> float:
        """What draft steps for all rows add to a round."""
        if drafter not in self._steps:
            self._steps[drafter] = self._model.draft(drafter, self.rows)
        first, further = self._steps[drafter]
        return (first + (steps - 1) * further) / self._plain_s if steps else 0.0


def _windows() -> dict[int, deque[float]]:
    return defaultdict(lambda: deque(maxlen=_WINDOW))


def _interpolation(width: int) -> np.ndarray:
    """Weight of each knot in the log time of a width."""
    return np.array([np.interp(width, _KNOTS, knot) for knot in np.eye(len(_KNOTS))])


def _nearest(table: Mapping[int, _T], rows: int) -> _T | None:
    """The entry of this batch size, or of the nearest one."""
    if rows in table:
        return table[rows]
    return table[min(table, key=lambda known: abs(known - rows))] if table else None
