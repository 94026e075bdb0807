"""How many steps a draft of beams looks ahead: as many as pay, by what passes cost here and how drafts have fared.

A pass over n tokens takes about a + b·n. A step needs the tokens of its beams read whatever is drafted, so that a pass
with a draft of γ steps costs a + b·(tokens drafted in vain) beside that, for the steps it gives. γ is where this is
least for each step. The first pass has no draft; later, where no pass has had one for long, one step is drafted, and
where all had one, one pass goes without: what passes cost is to be seen with and without.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median

from specchat.engine.tools.beams.node import Node

FURTHEST = 6
"""Largest γ."""
_PROBE = 48
"""Passes with a draft before one without, and the other way round."""
_RECENT = 12
"""Passes of either kind that costs are learnt from."""
_HELD = 0.6
"""What is thought of a depth before it has been tried: the share of its drafts that go through, and of its tokens that
are of use."""
_WEIGHT = 2
"""Drafts that this counts for."""


class LookAhead:
    """Chooses γ for each pass of one search.

    Args:
        width: u, tokens drafted for each step.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._plain_passes: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        """Tokens and seconds of the latest without a draft."""
        self._drafted_passes: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._line = 1.0, 0.0
        """a and b; before the first pass, what drafts most."""
        self._drafting_s = 0.0
        """Of the latest draft, for each of its steps."""
        self._since_draft = 0
        """Passes."""
        self._since_plain = _PROBE
        """Passes since one without a draft."""
        self._pending: dict[Node, int] = {}
        """Tokens of drafts that may still turn out to be of use, with the step of the draft that they are for."""
        self._drafted: Counter[int] = Counter()
        self._useful: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()
        self._passed: Counter[int] = Counter()

    def choose(self) -> int:
        """γ of the next pass."""
        best = min(range(FURTHEST + 1), key=self._cost)
        if best == 0:
            return int(self._since_draft >= _PROBE)
        return best if self._since_plain < _PROBE else 0

    def _cost(self, gamma: int) -> float:
        """Seconds for each step of a search that drafts so far ahead, but for what reading its beams takes."""
        a, b = self._line
        cost, steps, going_on = a, 1.0, 1.0
        for depth in range(gamma):
            cost += b * self._width * (1 - self._share(self._useful, self._drafted, depth, self._width))
            going_on *= self._share(self._passed, self._reached, depth, 1)
            steps += going_on
        return (cost + gamma * self._drafting_s) / steps

    @staticmethod
    def _share(good: Counter[int], tried: Counter[int], depth: int, each: int) -> float:
        return (good[depth] + _HELD * _WEIGHT * each) / (tried[depth] + _WEIGHT * each)

    def drafted(self, levels: Sequence[Sequence[Node]], seconds: float) -> None:
        """A draft of these tokens, step by step, has taken so long."""
        if levels:
            self._since_draft, self._since_plain = 0, self._since_plain + 1
            self._drafting_s = seconds / len(levels)
        else:
            self._since_draft, self._since_plain = self._since_draft + 1, 0
        self._pending = {}
        for depth, level in enumerate(levels):
            self._pending.update(dict.fromkeys(level, depth))
            self._drafted[depth] += len(level)

    def read(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens has taken so long."""
        (self._plain_passes if self._since_plain == 0 else self._drafted_passes).append((tokens, seconds))
        self._line = fit_line((*self._plain_passes, *self._drafted_passes))

    def went_on(self, nodes: Iterable[Node]) -> None:
        """Texts with these ends are the beams of the next step."""
        for node in nodes:
            depth = self._pending.pop(node, None)
            if depth is not None:
                self._useful[depth] += 1

    def judged(self, gamma: int, steps: int) -> None:
        """A pass with a draft of γ steps has given so many steps, the one that needs no draft included."""
        for depth in range(gamma):
            self._reached[depth] += steps > depth
            self._passed[depth] += steps > depth + 1


def fit_line(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """a and b of seconds = a + b·tokens, neither below 0, by medians (Theil and Sen): a pass that was held up by
    something else moves them little."""
    known = list(points)
    slopes = [(t - s) / (m - n) for (n, s), (m, t) in combinations(known, 2) if m != n]
    b = max(median(slopes), 0.0) if slopes else 0.0
    return max(median(seconds - b * tokens for tokens, seconds in known), 0.0), b
