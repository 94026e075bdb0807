"""Predicted against measured speedup, and what lies between the two, from `Round` records and nothing else.

Measured speedup needs to know what plain decoding costs. Here that is what it did cost: the plain rounds of the same
run just before, in batches of the same size. Where there were none, there is no measured speedup.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from engine.events import Round
from engine.theory import expected_tokens

ENOUGH = 3
"""Plain rounds before their cost is known."""
_WINDOW = 15
"""Plain rounds that the median is taken of."""


class Baseline:
    """What plain decoding costs on this machine, by size of the batch. Feed it every round of the run, in order.

    A round counts where no row of its batch drafted anything. First rounds, which may have read a prompt, and rounds
    with `Detail`, which takes time, do not count.
    """

    def __init__(self) -> None:
        self._batch: dict[str, Round] = {}
        self._passes: dict[int, deque[float]] = {}
        self._rounds: dict[int, deque[float]] = {}

    def add(self, record: Round) -> None:
        """Count one request's part of a round."""
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
        """Seconds of one pass of the target over one token of each row; None until measured."""
        return _median(self._passes.get(rows))

    def round_s(self, rows: int) -> float | None:
        """The same with all that is neither draft nor verification: seconds per token of plain decoding."""
        return _median(self._rounds.get(rows))


@dataclass(frozen=True, slots=True)
class Gain:
    """Speedups over plain decoding. predicted · acceptance · passes · overhead = measured, exactly."""

    c: float
    """Time spent drafting per position drafted for / time of a plain pass."""
    predicted: float
    """Leviathan et al. 2023, Theorem 3.8, with the α estimate and c, over the draft lengths that were run."""
    measured: float
    """Time per token of plain rounds / time per token of these rounds."""
    acceptance: float
    """Tokens emitted / tokens expected of an α that is the same for every token: below 1 where it is not."""
    passes: float
    """Time of drafts and plain passes / time of drafts and the verifications that were run: wider passes, longer
    contexts."""
    overhead: float
    """What the rest of each round takes away, beyond what it takes away from plain rounds."""


class Gains:
    """The sums behind `Gain` for one reply. The same rounds count as for `Baseline`.

    Each round is compared with what plain decoding cost when it ran, so that a machine that slows down or speeds up
    does not pass for a speedup. Rounds before the cost of plain decoding was known do not count.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self.rounds = 0
        """Rounds counted."""
        self._draft_s = self._verify_s = self._rest_s = 0.0
        self._pass_s = 0.0
        """A plain pass for each round."""
        self._step_s = 0.0
        """A plain pass for each position drafted for."""
        self._emitted_pass_s = self._emitted_round_s = 0.0
        """A plain pass, and a plain round, for each token emitted."""
        self._lengths: dict[int, float] = {}
        """A plain pass for each round, by the length of its draft."""

    def add(self, record: Round) -> None:
        """Count one round, after it was added to the baseline."""
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

    def gain(self, alpha: float | None) -> Gain | None:
        """The speedups for an α estimate; None where nothing was drafted, or no plain rounds were measured."""
        if alpha is None or not self._step_s:
            return None
        expected = sum(cost * expected_tokens(min(alpha, 1.0), length) for length, cost in self._lengths.items())
        passes = self._draft_s + self._verify_s
        plain = self._draft_s + self._pass_s
        measured = self._emitted_round_s / (passes + self._rest_s)
        return Gain(
            c=self._draft_s / self._step_s,
            predicted=expected / plain,
            measured=measured,
            acceptance=self._emitted_pass_s / expected,
            passes=plain / passes,
            overhead=measured / (self._emitted_pass_s / passes),
        )


def _median(values: deque[float] | None) -> float | None:
    return median(values) if values is not None and len(values) >= ENOUGH else None
