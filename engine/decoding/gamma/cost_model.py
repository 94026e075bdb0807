"""Cost model: what rounds cost on this machine, learned from the rounds that it runs.

A round consists of draft steps, one verification pass, and the rest (work on the host). Passes have a curve of time
against width, drafts a line of time against steps, the rest a median. Times are in seconds, in `RoundCosts` in plain
rounds (γ = 0).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import median_low
from typing import Final, TypeVar

from specchat.engine.request import MAX_GAMMA

_KNOTS: Final = (1, 2, 3, 5, 9, 13, 17, 33, 65, 129)
"""Widths whose log times are estimated, with straight lines between them; wider passes count as the widest."""
_SLOPE = 0.02
"""Prior mean of the growth of log seconds per token: between a GPU (0) and a small CPU (0.03)."""
_LEVEL, _JUMP, _BEND = 25.0, 0.25**2, 0.03**2
"""Prior variances: of the level, so large that the first passes decide; of the step from one token to two; of the slope
and each of its changes at a knot."""
_PROPORTIONAL: Final = 17
"""Width from which on time is expected to grow in proportion to width at most."""
_DRIFT = 1e-5
"""Share of the prior variances that returns per pass: clock speed and load change."""
_NOISE = 0.3**2
"""Variance of log seconds around the curve, on a shared machine."""
_OUTLIER = 2.0
"""Standard deviations after which a slow pass counts no further: something else delayed it."""
_WINDOW = 15
"""Measurements per median."""
_UNKNOWN_STEP = 0.05
"""Time of a draft step / time of a plain pass, of a drafter that has not run: low enough to be tried."""
_WAITING = 128
"""Passes after which the curves are updated at the latest: together they take less time than one by one."""
_REFRESH = 1 / 16, 128
"""Measurements after which `RoundCosts` are computed again: a share of all so far, and the maximum."""
_RARITY = 6
"""√(n / this) of n passes have to be plain: seldom enough to cost little, and ever more seldom."""
_PROPORTION = 0.5
"""Weight of the assumption that the time of a draft is proportional to its steps, in measurements of a single step."""
_TOKENS = 64
"""Drafted tokens of a batch up to which costs are computed; costs of more are extrapolated."""

_T = TypeVar("_T")
_X: Final = [min(knot, _PROPORTIONAL) - 1 + _PROPORTIONAL * math.log(max(knot / _PROPORTIONAL, 1)) for knot in _KNOTS]
"""Positions of the knots on a scale on which log time is expected to be a straight line."""


def _prior(x: float, other: float) -> float:
    """Covariance of the log times at two positions before any measurement."""
    bends = sum((x - bend) * (other - bend) for bend in _X if bend < min(x, other))
    return _LEVEL + _JUMP * (min(x, other) > 0) + _BEND * bends


_PRIOR: Final = [[_prior(x, other) for other in _X] for x in _X]


class PassCurve:
    """Time of a pass against its width, for one batch size: a Kalman filter over log seconds at `_KNOTS`.

    In lists, since calls of NumPy after a pass take longer than the arithmetic.

    Args:
        like: curve of another batch size, whose shape is the prior mean.
    """

    def __init__(self, like: PassCurve | None = None) -> None:
        self._log_s: list[float] = like._log_s if like else [_SLOPE * x for x in _X]
        self._covariance = _PRIOR

    def observe(self, width: int, seconds: Sequence[float]) -> None:
        """Update with the median of passes of one width."""
        drift, noise = _DRIFT * len(seconds), _NOISE / len(seconds)
        covariance = [
            [each + drift * prior for each, prior in zip(*rows, strict=True)]
            for rows in zip(self._covariance, _PRIOR, strict=True)
        ]
        known = [_at(row, width) for row in covariance]
        variance = _at(known, width)
        error = math.log(max(median_low(seconds), 1e-9)) - _at(self._log_s, width)
        error = min(error, _OUTLIER * math.sqrt(variance + _NOISE))
        gain = [each / (variance + noise) for each in known]
        self._log_s = [each + share * error for each, share in zip(self._log_s, gain, strict=True)]
        self._covariance = [
            [each - share * other for each, other in zip(row, known, strict=True)]
            for row, share in zip(covariance, gain, strict=True)
        ]

    def seconds_up_to(self, width: int) -> list[float]:
        """Estimates for widths 1, 2, …, which never decrease."""
        return list(accumulate((math.exp(_at(self._log_s, each)) for each in range(1, width + 1)), max))


class CostModel:
    """Costs of one engine's rounds.

    Args:
        padded: the width that a pass of some width is run with.
        ragged: whether a pass costs what its tokens do, whichever rows they are in. Its width is then their number;
            otherwise it is T, the tokens of the longest row.
    """

    def __init__(self, padded: Callable[[int], int] = lambda width: width, *, ragged: bool = False) -> None:
        self.padded, self.ragged = padded, ragged
        self._measurements = 0
        self._curves: dict[int, PassCurve] = {}
        """Curves by batch size."""
        self._waiting: dict[tuple[int, int], list[float]] = defaultdict(list)
        """Passes not yet learned from: seconds by rows and padded width."""
        self._passes: dict[int, int] = defaultdict(int)
        self._plain: dict[int, int] = defaultdict(int)
        """Passes by batch size: all, and those without drafts."""
        self._drafts: dict[str, dict[int, dict[int, deque[float]]]] = defaultdict(lambda: defaultdict(_windows))
        """Latest times of a drafter's drafts, by batch size and number of steps."""
        self._rests: dict[bool, dict[int, deque[float]]] = defaultdict(_windows)
        """Latest times of the rest of rounds with drafts (True) or without, by batch size."""
        self._costs: tuple[int, RoundCosts] | None = None

    def observe_pass(self, rows: int, width: int, seconds: float) -> None:
        """Learn from one pass over `rows` rows, acceptance included."""
        self._measurements += 1
        self._passes[rows] += 1
        self._plain[rows] += width == self.plain_width(rows)
        self._waiting[rows, self.padded(width)].append(seconds)
        if self._measurements % _WAITING == 0:
            self._update_curves()

    def observe_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """Learn from a draft for `rows` rows: the time of all its steps."""
        self._measurements += 1
        self._drafts[drafter][rows][steps].append(seconds)

    def observe_rest(self, rows: int, seconds: float, *, drafted: bool) -> None:
        """Learn from the rest of a round with drafts, or without."""
        self._measurements += 1
        self._rests[drafted][rows].append(seconds)

    def plain_width(self, rows: int) -> int:
        """Width of a pass without drafts."""
        return rows if self.ragged else 1

    def lacks_plain(self, rows: int) -> bool:
        """Whether plain passes are too few to notice that drafts have become slower than them."""
        return self._plain[rows] ** 2 * _RARITY < self._passes[rows]

    def verify_up_to(self, rows: int, width: int) -> list[float]:
        """Time of a pass over `rows` rows, for widths 1 … `width`."""
        self._update_curves()
        seconds = (_nearest(self._curves, rows) or PassCurve()).seconds_up_to(self.padded(width))
        return seconds if self.ragged else [seconds[self.padded(each) - 1] for each in range(1, width + 1)]

    def rest(self, rows: int, *, drafted: bool) -> float | None:
        """Time of the rest of a round, if known."""
        window = _nearest(self._rests[drafted], rows)
        return median_low(window) if window else None

    def drafts(self, drafter: str, rows: int) -> list[tuple[int, float, float]]:
        """Numbers of steps of a drafter's drafts, each with a time and its weight, as errors are shares of times."""
        windows = _nearest(self._drafts[drafter], rows) or {}
        return [(steps, median_low(window), len(window) / steps**2) for steps, window in windows.items()]

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


class RoundCosts:
    """Costs of rounds with one batch size, in plain rounds (γ = 0).

    The size of a round's drafts is the number of their tokens where passes are ragged, else the length of the longest.
    """

    def __init__(self, model: CostModel, rows: int) -> None:
        self.rows, self.ragged, self._model = rows, model.ragged, model
        plain = model.plain_width(rows)
        most = max(MAX_GAMMA, min(MAX_GAMMA * rows, _TOKENS)) if model.ragged else MAX_GAMMA
        seconds = model.verify_up_to(rows, plain + most)[plain - 1 :]
        drafted = model.rest(rows, drafted=True) or 0.0
        rest = model.rest(rows, drafted=False) or drafted
        self.plain_s = seconds[0] + rest
        more = max(0.0, drafted - rest) - seconds[0]
        self._added = [0.0, *((each + more) / self.plain_s for each in seconds[1:])]
        self._steps: dict[str, tuple[float, float]] = {}
        """Times of the first step and of a further one, by drafter."""

    def size(self, lengths: Sequence[int]) -> int:
        """Size of drafts of these lengths."""
        return sum(lengths) if self.ragged else max(lengths, default=0)

    def verifying(self, size: int) -> float:
        """Time that verifying drafts of this size adds to a round."""
        beyond = max(0, size - len(self._added) + 1)
        return self._added[size - beyond] + beyond * (self._added[-1] - self._added[-2])

    def drafting(self, drafter: str, steps: int) -> float:
        """Time that `steps` draft steps for all rows add to a round; the first one takes longer than the others."""
        if drafter not in self._steps:
            measured = self._model.drafts(drafter, self.rows) or [(1, _UNKNOWN_STEP * self.plain_s, 1.0)]
            first, more = _line([(0, 0.0, _PROPORTION), *measured])
            self._steps[drafter] = first / self.plain_s, more / self.plain_s
        first, more = self._steps[drafter]
        return first + more * (steps - 1) if steps else 0.0


def _line(drafts: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Least-squares line through drafts: seconds of the first step and of each further one.

    Args:
        drafts: at least two numbers of steps, with their seconds and weights.
    """
    weight = sum(w for _, _, w in drafts)
    steps, seconds = sum(w * n for n, _, w in drafts) / weight, sum(w * s for _, s, w in drafts) / weight
    spread = sum(w * (n - steps) ** 2 for n, _, w in drafts)
    more = sum(w * (n - steps) * (s - seconds) for n, s, w in drafts) / spread
    more = min(max(more, 0.0), seconds / steps)
    return seconds - more * (steps - 1), more


def _windows() -> dict[int, deque[float]]:
    return defaultdict(lambda: deque(maxlen=_WINDOW))


@lru_cache(maxsize=1024)
def _place(width: int) -> tuple[int, float]:
    """Index of the last knot before a width, and the share of the distance to the next knot."""
    left = min(bisect_right(_KNOTS, width), len(_KNOTS) - 1) - 1
    return left, min((width - _KNOTS[left]) / (_KNOTS[left + 1] - _KNOTS[left]), 1.0)


def _at(values: Sequence[float], width: int) -> float:
    """The value at a width, given those at the knots."""
    left, share = _place(width)
    return values[left] + share * (values[left + 1] - values[left])


def _nearest(table: Mapping[int, _T], rows: int) -> _T | None:
    """The entry of this batch size, or of the nearest one."""
    return table[min(table, key=lambda known: abs(known - rows))] if table else None
