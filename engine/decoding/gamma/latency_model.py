"""Latency model: what a round costs on this machine, learnt from the rounds it has run. All times are seconds.

A round is draft steps, one verifying pass (`engine.decoding.gamma.pass_curve`), and the rest.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from specchat.engine.decoding.gamma.pass_curve import PassCurve

_WINDOW = 15
"""Measurements a median is taken of."""
_LATE = 32
"""Passes that may wait until somebody asks: beside passes of milliseconds taking in each one by itself is felt."""
_FEW = 8
"""Passes by which the doubt about the curve hardly changes."""
_PRIOR_DRAFT = 0.05
"""Cost ratio c of a drafter that has never run: low enough to be tried."""

V = TypeVar("V")


class LatencyModel:
    """The cost table of one engine. Feed it every round; estimates are, in effect, medians.

    Args:
        padded: the width that a pass of some width is run with.
        ragged: whether a pass costs what its tokens do, however they are spread over the rows. Its width is then their
            number; else it is T, those of the longest row.
    """

    def __init__(self, padded: Callable[[int], int] = lambda width: width, *, ragged: bool = False) -> None:
        self._padded = padded
        self.ragged = ragged
        self.changes = 0
        """Measurements so far: an estimate stays what it is while this does."""
        self._passes: dict[int, PassCurve] = {}
        self._waiting: list[tuple[int, int, float]] = []
        """Passes that are still to be learnt from: rows, width, seconds."""
        self._rest: dict[bool, dict[int, _Median]] = {False: defaultdict(_Median), True: defaultdict(_Median)}
        """Of rounds without drafts, and with."""
        self._steps: dict[str, dict[int, _Median]] = defaultdict(lambda: defaultdict(_Median))
        self._first: dict[str, dict[int, _Median]] = defaultdict(lambda: defaultdict(_Median))
        self._further: dict[str, dict[int, _Median]] = defaultdict(lambda: defaultdict(_Median))

    def observe(self, rows: int, width: int, drafter: str | None, steps: int, draft_s: float, verify_s: float) -> None:
        """Learn from one round.

        Args:
            rows: requests in the batch.
            width: of the verifying pass.
            drafter: the one that drafted; None where none or several did, and `draft_s` cannot be attributed.
            steps: draft steps it was asked for (the longest γ).
            draft_s: time of all draft steps.
            verify_s: time of the pass and of the acceptance.
        """
        self.observe_pass(rows, width, verify_s)
        if drafter is not None and steps > 0:
            self._learn_draft(drafter, rows, steps, draft_s)

    def observe_pass(self, rows: int, width: int, seconds: float) -> None:
        """Learn from one pass."""
        self.changes += 1
        self._waiting.append((rows, width, seconds))
        if len(self._waiting) >= _LATE:
            self._take_in()

    def observe_step(self, drafter: str, rows: int, seconds: float) -> None:
        """Learn from one draft step."""
        self.changes += 1
        self._steps[drafter][rows].add(seconds)

    def observe_rest(self, rows: int, drafted: bool, seconds: float) -> None:
        """Learn what a round took beside drafting and verification: one with drafts has more to tell."""
        self.changes += 1
        self._rest[drafted][rows].add(seconds)

    def plain_width(self, rows: int) -> int:
        """Width of a pass without drafts."""
        return rows if self.ragged else 1

    def verify(self, rows: int, width: int) -> float:
        """One pass of a width over `rows` rows."""
        return self.verify_up_to(rows, width)[-1]

    def verify_up_to(self, rows: int, width: int) -> list[float]:
        """`verify` for the widths 1 … `width`."""
        self._take_in()
        curve = _nearest(self._passes, rows) or PassCurve()
        seconds = curve.seconds_up_to(self._padded(width))
        if self.ragged:
            return seconds
        return [seconds[self._padded(each) - 1] for each in range(1, width + 1)]

    def doubt(self, rows: int, width: int) -> float:
        """Standard deviation of log(verify(width) / verify(plain)): by which factor, roughly, it may be wrong."""
        if len(self._waiting) > min(self.changes // _LATE, _FEW):
            self._take_in()
        curve = self._passes.get(rows) or PassCurve()
        return curve.doubt(self._padded(width), self._padded(self.plain_width(rows)))

    def draft_step(self, drafter: str, rows: int) -> float:
        """One more token drafted for each of `rows` rows."""
        step = _nearest(self._steps.get(drafter, {}), rows)
        return step.value if step else _PRIOR_DRAFT * self.verify(rows, self.plain_width(rows))

    def first_step(self, drafter: str, rows: int) -> float:
        """A draft of one step."""
        step = _nearest(self._first.get(drafter, {}), rows)
        return step.value if step and step.value else self.draft_step(drafter, rows)

    def further_step(self, drafter: str, rows: int) -> float:
        """One draft step behind another, which may have had more to read."""
        step = _nearest(self._further.get(drafter, {}), rows)
        return step.value if step else self.draft_step(drafter, rows)

    def rest(self, rows: int, *, drafted: bool = False) -> float:
        """What a round costs beside drafting and verification, by whether anything was drafted."""
        rest = _nearest(self._rest[drafted], rows) or _nearest(self._rest[not drafted], rows)
        return rest.value if rest else 0.0

    def _take_in(self) -> None:
        """Learn from the passes that have waited, those of one batch size and width together."""
        waiting, self._waiting = self._waiting, []
        alike: dict[tuple[int, int], list[float]] = {}
        for rows, width, seconds in waiting:
            alike.setdefault((rows, self._padded(width)), []).append(seconds)
        for (rows, padded), several in alike.items():
            if rows not in self._passes:
                self._passes[rows] = PassCurve(_nearest(self._passes, rows))
            self._passes[rows].observe(padded, several)

    def _learn_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        self.changes += 1
        self._steps[drafter][rows].add(seconds / steps)
        first = self._first[drafter][rows]
        if steps == 1:
            first.add(seconds)
        elif first.value:
            more = max(0.0, seconds - first.value) / (steps - 1)
            self._further[drafter][rows].add(more)


class _Median:
    """The median of the last measurements; the lower one of two, since noise mostly adds."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._known: float | None = 0.0

    def add(self, value: float) -> None:
        self._window.append(value)
        self._known = None

    @property
    def value(self) -> float:
        """0 while there is none."""
        if self._known is None:
            self._known = sorted(self._window)[(len(self._window) - 1) // 2]
        return self._known


def _nearest(table: Mapping[int, V], rows: int) -> V | None:
    """The entry for this batch size, or for the one nearest to it."""
    if rows in table:
        return table[rows]
    return table[min(table, key=lambda r: abs(r - rows))] if table else None
