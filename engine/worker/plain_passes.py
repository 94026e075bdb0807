"""Plain passes (without drafts), timed so that the cost of plain decoding is known if every round drafts."""

from __future__ import annotations

import timeit
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.round import Runner
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.stats.speedup import PlainTimes
from specchat.engine.worker.records import Times

WARM_UP_PASSES = 5
TIMED_WIDTHS = (1, 2, 5, 9, 17)
_TIMED = 2
"""Timed passes per width, from which costs are known before the first reply."""
FIRST = 8
"""Passes of a batch size that are timed early: their median is then good to a few hundredths."""
_NEW_PRICE = 20
"""Time of rounds between the few passes at a context of which nothing is known, in plain passes."""
EARLY_PRICE = 50
"""Time of rounds between the `FIRST` ones, in plain passes."""
PRICE = 100
"""Time of rounds between later ones, in plain passes: they take at most 1 % of the time."""
_RECENT = 5
"""Plain passes whose median says what one takes."""


def time_warm_passes(target: Backend) -> tuple[float, ...]:
    """Seconds of passes over one token of one row, of a target that is warm."""
    token = torch.zeros(1, 1, dtype=torch.long, device=target.device)
    times = timeit.repeat(lambda: target.forward(token, [0], [0]).amax().item(), number=1, repeat=WARM_UP_PASSES)
    return tuple(times)


def time_wider_passes(target: Backend) -> list[tuple[int, float]]:
    """Widths and seconds of passes over one row, of a target that is warm and has no row."""
    found = []
    for width in (width for width in TIMED_WIDTHS if width <= target.context):
        tokens = torch.zeros(1, width, dtype=torch.long)
        times = timeit.repeat(partial(target.forward, tokens, [0], [0]), number=1, repeat=_TIMED)
        found += [(width, seconds) for seconds in times]
    return found


@dataclass(slots=True)
class _Known:
    """Measurements of one batch size B."""

    first_s: float
    """Time of the first pass, of whatever width."""
    passes: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Times of the latest plain passes."""
    work_s: float = 0.0
    """Time of the rounds since then."""

    def due(self, *, new: bool) -> bool:
        """Whether enough was done since the last one to pay for another; `new` if the context is."""
        price = min(_NEW_PRICE if new else PRICE, EARLY_PRICE if self.passes < FIRST else PRICE)
        return self.work_s > 0 and self.work_s >= price * (median(self.recent) if self.recent else self.first_s)

    def note(self, seconds: float) -> None:
        """Take in a plain pass."""
        self.passes, self.work_s = self.passes + 1, 0.0
        self.recent.append(seconds)


class PlainPasses:
    """Rare plain passes between the rounds of an engine, whose results are discarded.

    Such a pass writes the keys and values of each row's last token where the round that follows writes the same ones,
    and its draws depend on the number of the round alone: the replies stay what they are.

    Args:
        target: runner of the target model.
        warm: times of the passes of the warm-up.
    """

    def __init__(self, target: Backend, warm: tuple[float, ...]) -> None:
        self._target = target
        self._known: dict[int, _Known] = {}
        self._times = PlainTimes()
        self._times.warm = warm

    def due(self, rows: Sequence[SequenceState]) -> bool:
        """Whether a plain pass is to be timed before the next round of these rows."""
        known = self._known.get(len(rows))
        if known is None or any(not row.rounds or row.request.detail for row in rows):
            return False
        return known.due(new=not self._times.near(len(rows), _mean_context(rows)))

    def learn(self, plain: bool, times: Times) -> None:
        """Take in a round that has been run: whether no row drafted, and its times."""
        known = self._known.setdefault(times.rows, _Known(first_s=times.verify_s))
        if plain:
            known.note(times.verify_s)
            self._times.add(times.rows, times.context / times.rows, times.verify_s)
        else:
            known.work_s += times.draft_s + times.verify_s + times.rest_s

    def run(self, runner: Runner[Any], rows: Sequence[SequenceState]) -> float:
        """Run a plain pass and its verification; return its seconds."""
        watch = self._target.stopwatch
        watch.start()
        runner.plain_pass(rows)
        watch.mark()
        seconds = watch.seconds()[0]
        self._known[len(rows)].note(seconds)
        self._times.add(len(rows), _mean_context(rows), seconds)
        return seconds


def _mean_context(rows: Sequence[SequenceState]) -> float:
    return sum(len(row.tokens) for row in rows) / len(rows)
