"""Predicted against measured speedup, and what lies between the two, from `Round` records and nothing else.

Measured speedup needs to know what plain decoding costs. Here that is what it did cost: the plain rounds of the same
run, in batches of the same size. Where there were none, there is no measured speedup.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
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
    """Time spent drafting per drafted token / time of a plain pass."""
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


@dataclass(slots=True)
class _Sums:
    rounds: int = 0
    emitted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rest_s: float = 0.0
    lengths: Counter[int] = field(default_factory=Counter)


class Gains:
    """The sums behind `Gain` for one reply, by size of the batch. The same rounds count as for `Baseline`."""

    def __init__(self) -> None:
        self._sums: dict[int, _Sums] = {}

    @property
    def rounds(self) -> int:
        """Rounds counted."""
        return sum(s.rounds for s in self._sums.values())

    def add(self, record: Round) -> None:
        """Count one round."""
        if record.detail or not record.number:
            return
        s = self._sums.setdefault(record.rows, _Sums())
        s.rounds += 1
        s.emitted += len(record.emitted)
        s.draft_s += record.draft_s
        s.verify_s += record.verify_s
        s.rest_s += record.rest_s
        s.lengths[len(record.drafted)] += 1

    def gain(self, alpha: float | None, baseline: Baseline) -> Gain | None:
        """The speedups; None where nothing was tested, or plain rounds of no such batch were measured."""
        expected = emitted = plain = passes = seconds = plain_seconds = steps = step_s = 0.0
        for rows, s in self._sums.items():
            pass_s, round_s = baseline.pass_s(rows), baseline.round_s(rows)
            if pass_s is None or round_s is None or alpha is None:
                continue
            expected += pass_s * sum(n * expected_tokens(min(alpha, 1.0), length) for length, n in s.lengths.items())
            emitted += pass_s * s.emitted
            plain += s.draft_s + s.rounds * pass_s
            passes += s.draft_s + s.verify_s
            seconds += s.draft_s + s.verify_s + s.rest_s
            plain_seconds += round_s * s.emitted
            steps += pass_s * sum(n * length for length, n in s.lengths.items())
            step_s += s.draft_s
        if not steps or not emitted or not seconds:
            return None
        measured = plain_seconds / seconds
        return Gain(
            c=step_s / steps,
            predicted=expected / plain,
            measured=measured,
            acceptance=emitted / expected,
            passes=plain / passes,
            overhead=measured / (emitted / passes),
        )


def _median(values: deque[float] | None) -> float | None:
    return median(values) if values is not None and len(values) >= ENOUGH else None
