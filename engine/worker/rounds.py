"""Rounds: one draft and one verification for the rows that are ready, and what comes of it for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.proposal import Source
from specchat.engine.decoding.round import Timing, run_round
from specchat.engine.events import FinishReason
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.commit import commit, record
from specchat.engine.worker.faults import Faults
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.open_requests import OpenRequests, sentence
from specchat.engine.worker.plain_passes import PlainPasses


class Rounds:
    """Runs rounds and says what they gave.

    Args:
        made: what the engine runs with.
        planner: drafts.
        plain_passes: timed beside rounds; None where they are not.
        requests: ended here when a reply is complete.
        faults: ends rows that rounds fail for.
        notices: for what keeps passes from being fast.
        clock: seconds since the engine started.
    """

    def __init__(
        self,
        made: Assembly,
        planner: Planner,
        plain_passes: PlainPasses | None,
        requests: OpenRequests,
        faults: Faults,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._made = made
        self._planner = planner
        self._plain_passes = plain_passes
        self._requests = requests
        self._faults = faults
        self._notices = notices
        self._clock = clock

    def run(self, rows: Sequence[SequenceState]) -> None:
        """One round for rows that are ready."""
        self._faults.run(self._verify, rows)

    def _verify(self, rows: Sequence[SequenceState]) -> None:
        plain_s = self._plain_passes.measure(rows) if self._plain_passes else 0.0
        plan, outcomes, timing = run_round(self._made.target, rows, self._planner)
        self._planner.learn(rows, plan, outcomes, timing.draft, timing.verify)
        if plain_s:
            self._planner.learn_plain(len(rows), plain_s)
        if self._plain_passes:
            plain = not any(plan.proposal.lengths)
            self._plain_passes.learn(len(rows), plain, timing.verify, timing.draft + timing.verify + _rest(timing))
        self._faults.passed()
        self._notices.tell_performance_warnings()
        for row, outcome, sources in zip(rows, outcomes, plan.sources, strict=True):
            try:
                self._conclude(row, outcome, sources, timing, len(rows), plain_s)
            except Exception as error:  # its text, its record: nothing that the others share
                self._requests.finish(row, FinishReason.ERROR, sentence(error), keep=False)
        self._planner.learn_rest(len(rows), plan, _rest(timing))

    def _conclude(
        self,
        row: SequenceState,
        outcome: Outcome,
        sources: Sequence[Source],
        timing: Timing,
        rows: int,
        plain_s: float,
    ) -> None:
        model, target = self._made.model, self._made.target
        if outcome.broken:
            target.cache.clear(row.slot)
            message = f"{model.name} computed something that is not a number: try another --dtype"
            self._requests.finish(row, FinishReason.ERROR, message, keep=False)
            return
        added, pieces, reason = commit(row, outcome, model.eos_ids, target.context)
        proposers = tuple(source.proposer(outcome.drafted) for source in sources if outcome.drafted)
        self._planner.drafters.on_accepted(row, added)
        row.outbox.put(
            record(
                row,
                outcome,
                added,
                pieces,
                at=self._clock(),
                draft_s=timing.draft,
                verify_s=timing.verify,
                rest_s=_rest(timing),
                rows=rows,
                plain_s=plain_s,
                proposers=proposers,
            )
        )
        row.rounds += 1
        if reason:
            self._requests.finish(row, reason)


def _rest(timing: Timing) -> float:
    """What the round has taken so far beside draft and verification, in seconds."""
    return time.perf_counter() - timing.started - timing.draft - timing.verify
