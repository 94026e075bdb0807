"""Rounds: one draft and one verification for all ready rows, and the tokens and records that result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from specchat.engine.decoding.draft import Source
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import Outcome, RoundOutcome, Runner
from specchat.engine.errors import EngineError
from specchat.engine.events import FinishReason
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.emission import Emission
from specchat.engine.worker.faults import Faults
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.plain_passes import PlainPasses
from specchat.engine.worker.records import Commit, Times
from specchat.engine.worker.requests import OpenRequests


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
