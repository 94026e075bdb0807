"""Predicted and measured speedup, and the factors between them, computed from `Round` records alone.

The cost of plain decoding is measured: it is that of the latest plain rounds of the same run, at the same batch size.
Without such rounds there is no measured speedup.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from specchat.engine.events import Round
from specchat.engine.stats.theory import expected_of_rounds

ENOUGH = 3
"""Plain rounds needed before their cost counts as known."""
_WINDOW = 15
"""Plain rounds that the median is taken over."""


class Baseline:
    """Measured cost of plain decoding per batch size B. Pass every round of the run to `add`, in order.

    A round counts if no row of its batch drafted anything. First rounds, which may include prefill, and rounds with
    `Detail`, which takes time, do not count.
    """

    def __init__(self) -> None:
        self._batch: dict[str, Round] = {}
        self._passes: dict[int, deque[float]] = {}
        self._rounds: dict[int, deque[float]] = {}

    def add(self, record: Round) -> None:
        """Add one request's record of a round."""
        batch = self._batch
        if record.request_id in batch or any(other.rows != record.rows for other in batch.values()):
            batch.clear()
        batch[record.request_id] = record
        if len(batch) < record.rows:
            return
        if all(not row.drafted and not row.detail and row.number for row in batch.values()):
            self._passes.setdefault(record.rows, deque(maxlen=_WINDOW)).append(record.verify_s)
            self._rounds.setdefault(record.rows, deque(maxlen=_WINDOW)).append(record.verify_s + record.rest_s)
        batch.clear()

    def pass_s(self, rows: int) -> float | None:
        """Seconds of a target pass over one token of each row; None until measured."""
        return _median(self._passes.get(rows))

    def round_s(self, rows: int) -> float | None:
        """Seconds of a plain round (pass and rest), which is the time per token; None until measured."""
        return _median(self._rounds.get(rows))


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speedup over plain decoding, as factors: predicted · acceptance · passes · overhead = measured, exactly."""

    c: float
    """Drafting time per position drafted for / time of a plain pass."""
    predicted: float
    """By Leviathan et al. 2023, Theorem 3.8, from the α estimate, c and the draft lengths that were run."""
    measured: float
    """Time per token of plain rounds / time per token of these rounds."""
    acceptance: float
    """Tokens emitted / tokens expected if α were the same for every token; below 1 if it is not."""
    passes: float
    """Time of drafts and plain passes / time of drafts and actual verifications: cost of wider passes and longer
    contexts."""
    overhead: float
    """Effect of the time outside draft and verification, relative to that of plain rounds."""


class SpeedupTracker:
    """Accumulates `Speedup` for one reply, over rounds that `Baseline` would count but for their drafts.

    Each round is compared with the cost of plain decoding at its time, so that a machine that slows down or speeds up
    is not mistaken for a speedup. Rounds before that cost was known do not count.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self.rounds = 0
        """Rounds counted."""
        self._draft_s = self._verify_s = self._rest_s = 0.0
        self._pass_s = 0.0
        """Sum of plain pass times, one per round."""
        self._step_s = 0.0
        """The same, one per position drafted for."""
        self._emitted_pass_s = self._emitted_round_s = 0.0
        """Sums of plain pass times and plain round times, one per token emitted."""
        self._lengths: dict[int, float] = {}
        """Draft length to the sum of plain pass times, one per round."""

    def add(self, record: Round) -> None:
        """Add one round; add it to the baseline first."""
        pass_s, round_s = self._baseline.pass_s(record.rows), self._baseline.round_s(record.rows)
        if record.detail or not record.number or pass_s is None or round_s is None:
            return
        length, emitted = record.steps, len(record.emitted)
        self.rounds += 1
        self._draft_s += record.draft_s
        self._verify_s += record.verify_s
        self._rest_s += record.rest_s
        self._pass_s += pass_s
        self._step_s += pass_s * length
        self._emitted_pass_s += pass_s * emitted
        self._emitted_round_s += round_s * emitted
        self._lengths[length] = self._lengths.get(length, 0.0) + pass_s

    def gain(self, alpha: float | None) -> Speedup | None:
        """Speedup for an α estimate; None if nothing was drafted or no plain rounds were measured."""
        if alpha is None or not self._step_s:
            return None
        expected = expected_of_rounds(min(alpha, 1.0), self._lengths)
        passes = self._draft_s + self._verify_s
        plain = self._draft_s + self._pass_s
        measured = self._emitted_round_s / (passes + self._rest_s)
        return Speedup(
            c=self._draft_s / self._step_s,
            predicted=expected / plain,
            measured=measured,
            acceptance=self._emitted_pass_s / expected,
            passes=plain / passes,
            overhead=measured / (self._emitted_pass_s / passes),
        )


def _median(values: deque[float] | None) -> float | None:
    return median(values) if values is not None and len(values) >= ENOUGH else None
