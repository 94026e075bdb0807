"""Rounds: one draft and one verification for all ready rows, and the tokens and records that result; plain passes."""

from __future__ import annotations

import time
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from statistics import median
from typing import Any

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Source
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import Outcome, RoundOutcome, Runner
from specchat.engine.errors import EngineError
from specchat.engine.events import FinishReason
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.stats.speedup import PlainTimes
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.records import Commit, Emission, Times
from specchat.engine.worker.requests import Faults, OpenRequests

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


@dataclass(frozen=True, slots=True)
class Rounds:
    """Runs rounds. Each commits its tokens at once; its records are made and emitted while the next one runs.

    Args:
        made: what the engine runs with.
        planner: orders drafts.
        runner: runs rounds of the target.
        plain_passes: timed in addition to rounds; None for none.
        requests: ended here when a reply is complete.
        emission: of the records.
        faults: ends rows that rounds fail for.
        notices: for performance warnings.
        clock: seconds since the engine started.
    """

    made: Assembly
    planner: Planner
    runner: Runner[Any]
    plain_passes: PlainPasses | None
    requests: OpenRequests
    emission: Emission
    faults: Faults
    notices: Notices
    clock: Callable[[], float]

    def run(self, rows: Sequence[SequenceState], extend: Callable[[], bool]) -> None:
        """Run one round for rows that are ready, or several.

        Args:
            rows: of the round.
            extend: makes room for several rounds; returns whether there is some.
        """
        self._end_failed(rows)
        if rows := [row for row in rows if row.failed is None]:
            self.faults.run(partial(self._run, extend=extend), rows)

    def _run(self, rows: Sequence[SequenceState], *, extend: Callable[[], bool]) -> None:
        plain_s = 0.0
        if any(not row.rounds for row in rows):  # its drafter may have a whole prompt to read
            self.emission.flush()
        if self.plain_passes and self.plain_passes.due(rows):
            self.emission.finish()  # it would share the pass's cores
            plain_s = self.plain_passes.run(self.runner, rows)
            self.planner.learn_plain(len(rows), plain_s)
        started = time.perf_counter()
        orders = self.planner.orders(rows)
        results = self.runner.run(orders, self.planner.max_rounds(rows, extend), self.made.model.eos_ids)
        self.faults.passed()
        running, ended = set(range(len(rows))), list[tuple[SequenceState, FinishReason]]()
        later = sum(result.draft_s + result.verify_s for result in results)
        for result in results:
            self.planner.learn(orders, result)
            context = sum(len(row.tokens) for row in rows)
            commits = self._commit(rows, result, running)
            ended += [(commit.row, commit.reason) for commit in commits if commit.reason]
            rest = time.perf_counter() - started - later
            later -= result.draft_s + result.verify_s
            times = Times(self.clock() - later, result.draft_s, result.verify_s, rest, plain_s, len(rows), context)
            started, plain_s = started + result.draft_s + result.verify_s + rest, 0.0
            first = any(not commit.number for commit in commits)  # what the reader waits for
            self.emission.put(partial(self._emit, commits, times), inf if first else sum(times[1:4]))
            self.planner.learn_rest(result, rest)
            if self.plain_passes:
                self.plain_passes.learn(not result.drafted, times)
        for row, reason in ended:
            self.requests.finish(row, reason)
        self._end_failed(rows)

    def _commit(self, rows: Sequence[SequenceState], result: RoundOutcome, running: set[int]) -> list[Commit]:
        """Add a round's tokens to the rows that are `running`; rows that end with it are taken out of it."""
        commits = []
        for i in sorted(running):
            try:
                commits.append(self._add(rows[i], result.outcomes[i], result.drafts[i].sources))
            except Exception as error:  # its text: nothing that the others share
                self.emission.finish()  # no records of a failed row are made
                rows[i].failed = error
            if rows[i].failed is not None or commits[-1].reason:
                running.discard(i)
        return commits

    def _add(self, row: SequenceState, outcome: Outcome, sources: Sequence[Source]) -> Commit:
        """Add a round's tokens to a row.

        Raises:
            EngineError: logits were not finite, or its constraint takes too much work.
        """
        model, target = self.made.model, self.made.target
        if row.constraint is not None:
            row.constraint.check()
        if outcome.broken:
            target.cache.clear(row.slot)
            raise EngineError(f"{model.name} computed something that is not a number: try another --dtype")
        commit = Commit.of(row, outcome, sources, model.eos_ids, target.limit(row))
        self.planner.drafters.on_accepted(row, commit.added)
        return commit

    def _end_failed(self, rows: Sequence[SequenceState]) -> None:
        for row in rows:
            if row.failed is not None and row in self.requests.scheduler.rows:
                self.requests.finish(row, FinishReason.ERROR)

    def _emit(self, commits: Sequence[Commit], times: Times) -> None:
        for commit in commits:
            commit.emit(times)
        self.notices.tell(self.made.performance_warnings())  # a slow shape may be met late
