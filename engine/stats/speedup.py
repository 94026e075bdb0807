"""Predicted and measured speedup, and the factors between them, computed from `Round` records.

The cost of plain decoding is measured at the same batch size in the same run: in the latest plain rounds, in plain
passes that the engine times before some drafting rounds, and until then in the passes of its warm-up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

from specchat.engine.events import Ready
from specchat.engine.round import Round
from specchat.engine.stats.theory import expected_of_rounds

ENOUGH = 3
"""Minimum number of plain passes of a batch size for an estimate of their cost."""
_WINDOW = 15
"""Number of rounds per median."""
_POSSIBLE = 1.1
"""Largest speedup, relative to τ: no round takes less time than a plain one, but times vary."""
_MEDIAN = 1.2533 * 1.4826
"""Standard error of the median of n values / (their median absolute deviation / √n), for normal noise."""


class Baseline:
    """Measured cost of reading, and of plain decoding per batch size B.

    Pass `Ready` and every round of the run to `add`, in order. A round counts if no row of its batch drafted, or if a
    plain pass was timed before it (`Round.plain_s`). First rounds, which may include prefill, and rounds with `Detail`,
    which takes time, do not count.
    """

    def __init__(self) -> None:
        self._batch: dict[str, Round] = {}
        self._warm: tuple[float, ...] = ()
        self._passes = _windows()
        self._rests = _windows()
        """Time outside pass and draft, of plain rounds."""
        self._any_rests = _windows()
        """The same, of all rounds."""
        self.read_s = 0.0
        """Seconds to read a token of a prompt, in the fastest chunk; 0 until one was read."""

    def add_read(self, tokens: int, seconds: float) -> None:
        """Add a chunk of a prompt."""
        if tokens > 0:
            self.read_s = min(self.read_s or seconds, seconds / tokens)

    def add(self, record: Ready | Round) -> None:
        """Add the warm-up measurements, or one request's record of a round."""
        if isinstance(record, Ready):
            self._warm = record.plain_s
            return
        if record.observed:  # its times are those of the stream
            return
        batch = self._batch
        if record.request_id in batch or any(other.verify_s != record.verify_s for other in batch.values()):
            batch.clear()
        batch[record.request_id] = record
        if len(batch) < record.rows:
            return
        if all(not row.detail and row.number for row in batch.values()):
            if record.plain_s:
                self._passes[record.rows].append(record.plain_s)
            self._any_rests[record.rows].append(record.rest_s)
            if not any(row.drafted for row in batch.values()):
                self._passes[record.rows].append(record.verify_s)
                self._rests[record.rows].append(record.rest_s)
        batch.clear()

    def pass_s(self, rows: int) -> float | None:
        """Seconds of a target pass over one token of each row; None until measured."""
        passes = self._known_passes(rows)
        return median(passes) if passes else None

    def round_s(self, rows: int) -> float | None:
        """Seconds of a plain round (pass and rest), which is the time per token; None until measured."""
        pass_s = self.pass_s(rows)
        plain = self._rests.get(rows, ())
        rests = plain if len(plain) >= ENOUGH else self._any_rests.get(rows, ())
        return pass_s + median(rests) if pass_s is not None and rests else None

    def error(self, rows: int) -> float:
        """Standard error of `pass_s`, relative to it; infinite until measured."""
        passes = self._known_passes(rows)
        if not passes:
            return inf
        middle = median(passes)
        return _MEDIAN * median([abs(each - middle) for each in passes]) / sqrt(len(passes)) / middle

    def _known_passes(self, rows: int) -> Sequence[float]:
        """The latest plain passes; those of the warm-up until there are enough."""
        passes = self._passes.get(rows, ())
        if len(passes) >= ENOUGH:
            return passes
        return self._warm if rows == 1 else ()


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speedup over plain decoding, as factors: predicted · acceptance · passes · overhead = measured, exactly."""

    c: float
    """Drafting time per drafted position / time of a plain pass."""
    predicted: float
    """By Leviathan et al. 2023, Theorem 3.8, from the α estimate, c and the actual draft lengths."""
    measured: float
    """Time per token of plain rounds / time per token of these rounds."""
    error: float
    """Standard error of `measured`, relative to it; infinite for a single round."""
    acceptance: float
    """Tokens emitted / tokens expected if α were the same for every token; below 1 if it is not."""
    passes: float
    """Time of drafts and plain passes / time of drafts and verifications: cost of wider passes and longer contexts."""
    overhead: float
    """Effect of the time outside draft and verification, relative to plain rounds."""


class SpeedupTracker:
    """Accumulates `Speedup` for one reply.

    `measured` is a ratio of two sums over rounds. Its error is the first-order error of that ratio, with the error of
    the plain pass added in quadrature. Each round is compared with the current cost of plain decoding, so that changes
    of the machine's speed do not count as speedup. Rounds before the first estimate of that cost, first rounds and
    rounds with `Detail` do not count.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self.rounds = 0
        """Rounds counted."""
        self._draft_s = self._verify_s = self._rest_s = 0.0
        self._pass_s = 0.0
        """Sum of plain pass times, one per round."""
        self._step_s = 0.0
        """Sum of plain pass times, one per drafted position."""
        self._emitted_pass_s = self._emitted_round_s = 0.0
        """Sums of plain pass times and plain round times, one per token emitted."""
        self._squares = [0.0, 0.0, 0.0]
        """Sums over rounds of x², x·t and t²: x the plain time of its tokens, t its time."""
        self._rows = 1
        self._lengths: dict[int, float] = {}
        """Draft length to the sum of plain pass times, one per round of that length."""

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
        x, t, self._rows = round_s * emitted, record.seconds, record.rows
        for i, product in enumerate((x * x, x * t, t * t)):
            self._squares[i] += product
        self._lengths[length] = self._lengths.get(length, 0.0) + pass_s

    def gain(self, alpha: float | None) -> Speedup | None:
        """Speedup for an α estimate; None if nothing was drafted or no plain rounds were measured.

        Also None where it exceeds τ: the plain passes were slower than the machine is now, as at a start on a busy one.
        """
        if alpha is None or not self._step_s:
            return None
        expected = expected_of_rounds(min(alpha, 1.0), self._lengths)
        passes = self._draft_s + self._verify_s
        plain = self._draft_s + self._pass_s
        measured = self._emitted_round_s / (passes + self._rest_s)
        if measured > _POSSIBLE * self._emitted_pass_s / self._pass_s:
            return None
        return Speedup(
            c=self._draft_s / self._step_s,
            predicted=expected / plain,
            measured=measured,
            error=sqrt(self._baseline.error(self._rows) ** 2 + self._variance(passes + self._rest_s)),
            acceptance=self._emitted_pass_s / expected,
            passes=plain / passes,
            overhead=measured / (self._emitted_pass_s / passes),
        )

    def _variance(self, seconds: float) -> float:
        """Variance of `measured` over the rounds, relative to its square; `seconds` is the time of all of them."""
        if self.rounds < 2:
            return inf
        plain_s = self._emitted_round_s
        xx, xt, tt = self._squares
        spread = xx / plain_s**2 - 2 * xt / (plain_s * seconds) + tt / seconds**2
        return max(spread, 0.0) * self.rounds / (self.rounds - 1)


def _windows() -> defaultdict[int, deque[float]]:
    """The latest measurements by batch size."""
    return defaultdict(lambda: deque(maxlen=_WINDOW))
