"""Latency model: what a round costs on this machine, learnt from the rounds it has run. All times are seconds.

A round is draft steps, one verifying pass (`engine.speculation.gamma.pass_curve`), and the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from specchat.engine.speculation.gamma.pass_curve import PassCurve

_WINDOW = 15
"""Measurements a median is taken of."""
_PRIOR_DRAFT = 0.05
"""Cost ratio c of a drafter that has never run: low enough to be tried."""

V = TypeVar("V")


class LatencyModel:
    """The cost table of one engine. Feed every round to `observe`; estimates are, in effect, medians.

    Args:
        padded: the width that a pass of some width is run with.
    """

    def __init__(self, padded: Callable[[int], int] = lambda width: width) -> None:
        self._padded = padded
        self._passes: dict[int, PassCurve] = {}
        self._known: dict[tuple[int, int], list[float]] = {}
        """Results of `verify_up_to` since the last round."""
        self._rest: dict[int, _Median] = {}
        self._steps: dict[str, dict[int, _Median]] = {}
        self._first: dict[str, dict[int, _Median]] = {}
        self._further: dict[str, dict[int, _Median]] = {}

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
        self.observe_pass(rows, width, verify_s)
        self._rest.setdefault(rows, _Median()).add(rest_s)
        if drafter is not None and steps > 0:
            self.observe_step(drafter, rows, draft_s / steps)
            first = self._first.setdefault(drafter, {}).setdefault(rows, _Median())
            if steps == 1:
                first.add(draft_s)
            elif first.value:
                more = max(0.0, draft_s - first.value) / (steps - 1)
                self._further.setdefault(drafter, {}).setdefault(rows, _Median()).add(more)

    def observe_pass(self, rows: int, width: int, seconds: float) -> None:
        """Learn from one pass over `width` tokens of each row."""
        self._known.clear()
        if rows not in self._passes:
            self._passes[rows] = PassCurve(_nearest(self._passes, rows))
        self._passes[rows].observe(self._padded(width), seconds)

    def observe_step(self, drafter: str, rows: int, seconds: float) -> None:
        """Learn from one draft step."""
        self._steps.setdefault(drafter, {}).setdefault(rows, _Median()).add(seconds)

    def verify(self, rows: int, width: int) -> float:
        """One pass over `width` tokens for each of `rows` rows."""
        return self.verify_up_to(rows, width)[-1]

    def verify_up_to(self, rows: int, width: int) -> list[float]:
        """`verify` for the widths 1 … `width`."""
        known = self._known.get((rows, width))
        if known is None:
            curve = _nearest(self._passes, rows) or PassCurve()
            seconds = curve.seconds_up_to(self._padded(width))
            known = self._known[rows, width] = [seconds[self._padded(each) - 1] for each in range(1, width + 1)]
        return known

    def doubt(self, rows: int, width: int) -> float:
        """Standard deviation of log(verify(width) / verify(1)): by which factor, roughly, the ratio may be wrong."""
        curve = self._passes.get(rows) or PassCurve()
        return curve.doubt(self._padded(width))

    def draft_step(self, drafter: str, rows: int) -> float:
        """One more token drafted for each of `rows` rows."""
        step = _nearest(self._steps.get(drafter, {}), rows)
        return step.value if step else _PRIOR_DRAFT * self.verify(rows, 1)

    def first_step(self, drafter: str, rows: int) -> float:
        """A draft of one step."""
        step = _nearest(self._first.get(drafter, {}), rows)
        return step.value if step and step.value else self.draft_step(drafter, rows)

    def further_step(self, drafter: str, rows: int) -> float:
        """One draft step behind another, which may have had more to read."""
        step = _nearest(self._further.get(drafter, {}), rows)
        return step.value if step else self.draft_step(drafter, rows)

    def rest(self, rows: int) -> float:
        """What a round costs beside drafting and verification, whatever its γ."""
        rest = _nearest(self._rest, rows)
        return rest.value if rest else 0.0


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
