"""Prefill: prompts are read in chunks between rounds, by the target and by drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.engine.config import EngineConfig
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.planner import Planner
from specchat.engine.device.device import to_device
from specchat.engine.events import Prefilled
from specchat.engine.sequence.sequence import Scheduler, SequenceState
from specchat.engine.worker.records import Emission
from specchat.engine.worker.requests import Faults, start


@dataclass(frozen=True, slots=True)
class Prefill:
    """Reads the prompts of rows that are not ready for a round.

    Args:
        config: tokens per chunk, and whether passes are exact.
        scheduler: holds the rows.
        planner: of the drafters.
        target: runner of the target model.
        faults: ends rows that cannot be read.
        clock: seconds since the engine started.
        emission: of the records of rounds.
    """

    config: EngineConfig
    scheduler: Scheduler
    planner: Planner
    target: Backend
    faults: Faults
    clock: Callable[[], float]
    emission: Emission

    def is_ready(self, row: SequenceState) -> bool:
        """Whether target and drafter have read what they need for the row's next round."""
        return not row.waits and row.prefilled and self.planner.drafters.has_read(row)

    def run(self) -> None:
        """One chunk, beginning with the prompt that was admitted first; running rows wait for no more than that.

        While several prompts wait, they wait for two: a round takes the longer the more rows run, so that of many
        prompts that come at once the last ones would wait for far more than their share.
        """
        if self._chunk() > 1:
            self._chunk()

    def _chunk(self) -> int:
        """Read one chunk; return the number of prompts still to be read."""
        unread = sorted(
            (row for row in self.scheduler.rows if not row.waits and not self.is_ready(row)),
            key=lambda row: row.admitted_at,
        )
        if not unread:
            return 0
        self.emission.flush()
        rows = [row for row in unread if row.prefilled == unread[0].prefilled]
        if self.config.exact:  # how a prompt is read may not depend on others
            rows = rows[:1]
        self.faults.run(self._read, rows)
        return sum(not row.waits and not self.is_ready(row) for row in self.scheduler.rows)

    def _read(self, rows: Sequence[SequenceState]) -> None:
        """Read one chunk of the first row's prompt and of others that fit into the pass: target first, then drafter."""
        if rows[0].prefilled:
            self.planner.drafters.prefill(rows)
            return
        started, limit, room = self.clock(), self.config.chunk_on(self.target.device.type), self.target.context
        rows = self.scheduler.prefill_batch(rows, limit, room, self._reuse, ragged=self.target.capabilities.ragged)
        reading = [row for row in rows if not row.prefilled]  # others have taken over all that was left
        chunks = [row.tokens[row.cached : min(row.cached + limit, len(row.tokens) - 1)] for row in reading]
        lengths = [len(chunk) for chunk in chunks]
        if reading:
            padded = to_device([chunk + [0] * (max(lengths) - len(chunk)) for chunk in chunks], self.target.device)
            slots, starts = [row.slot for row in reading], [row.cached for row in reading]
            tapped = self.target.prefill(padded, slots, starts, lengths)
            self.emission.release()
            self.planner.drafters.on_hidden_states(reading, tapped, lengths)
            for row, length in zip(reading, lengths, strict=True):
                row.cached += length
                self.scheduler.commit(row)
        now = self.clock()
        for row in rows:
            if not row.rounds:  # else a drafter that was changed to had to see it
                row.outbox.put(Prefilled(row.request.request_id, row.cached, row.prompt_length, now - started, now))

    def _reuse(self, row: SequenceState) -> None:
        """Take over the prefix of the row's text that another one has read since admission."""
        if self.scheduler.longer_prefix(row):
            self.planner.release(row)
            self.scheduler.suspend(row)
            if self.scheduler.resume(row):
                start(row, self.scheduler, self.planner)
