"""Predicted and measured speedup, and the factors between them, computed from `Round` records.

The cost of plain decoding is measured at the same batch size and about the same context in the same run: in the latest
plain rounds, in plain passes that the engine times before some drafting rounds, and in a short context, before there
are such, in the passes of its warm-up. Where none was timed, no speedup is measured.

The prediction is of Leviathan et al. 2023, section 3: α is the acceptance rate (0 to 1), γ the draft length, c the time
of one draft step over the time of one target pass. The paper assumes that a pass over γ + 1 tokens takes as long as a
pass over one, and that acceptance is independent from token to token.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf, log2, sqrt
from statistics import median
from typing import Any

from specchat.engine.events import Ready, Speedup
from specchat.engine.round import Round


def expected_tokens(alpha: float, gamma: float) -> float:
    """Mean tokens emitted by one round, the correction or bonus included: 1 to γ + 1 (equation 1)."""
    return gamma + 1 if alpha == 1 else float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def expected_of_rounds(alpha: float, rounds: Mapping[int, float]) -> float:
    """Equation 1 summed over rounds of different draft lengths.

    Args:
        rounds: draft length to count (or weight) of rounds.
    """
    return sum(count * expected_tokens(alpha, gamma) for gamma, count in rounds.items())


def speedup_of_rounds(alpha: float, rounds: Mapping[int, float], c: float) -> float:
    """Speedup over one token per target pass (Theorem 3.8), for rounds of different draft lengths.

    It is the expected number of tokens over the time in target passes, summed over all rounds; with one length it is
    the theorem. Actual lengths matter for drafters that often propose fewer tokens or adapt γ.

    Args:
        rounds: draft length to count (or weight) of rounds; not empty.
    """
    return expected_of_rounds(alpha, rounds) / sum(count * (gamma * c + 1) for gamma, count in rounds.items())


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Speedup over one token per target pass with one draft length (Theorem 3.8)."""
    return speedup_of_rounds(alpha, {gamma: 1}, c)


def operations(alpha: float, gamma: int) -> float:
    """Arithmetic operations of the target per token, relative to plain decoding (Theorem 3.11 with ĉ = 0)."""
    return (gamma + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, c: float, limit: int) -> int:
    """The draft length up to `limit` with the largest speedup (section 3.5); 0 where drafting does not pay."""
    return max(range(limit + 1), key=lambda gamma: (speedup(alpha, gamma, c), -gamma))


ENOUGH = 3
"""Minimum number of plain passes of a batch size and context for an estimate of their cost."""
_WINDOW = 15
"""Number of rounds per median."""
_FIRST_STRETCH, _PER_DOUBLING = 256, 8
"""Tokens of the first stretch of a context, within which passes count as alike; stretches in each further doubling."""
_REACH = 2
"""Stretches before and after whose passes count where a stretch has not enough."""
_POSSIBLE = 1.1
"""Largest speedup, relative to τ: no round takes less time than a plain one, but times vary."""
_MEDIAN = 1.2533 * 1.4826
"""Standard error of the median of n values / (their median absolute deviation / √n), for normal noise."""


class PlainTimes:
    """Times of plain passes by batch size and context: those at about the same context are comparable."""

    def __init__(self) -> None:
        self._times: defaultdict[tuple[int, int], deque[float]] = _windows()
        self.warm: tuple[float, ...] = ()
        """Passes of the warm-up, over one row without context: used until there are enough others."""

    def add(self, rows: int, context: float, seconds: float) -> None:
        """Add a pass over one token of each row, which had this many tokens before, on average."""
        self._times[rows, _stretch(context)].append(seconds)

    def near(self, rows: int, context: float) -> Sequence[float]:
        """The latest passes at about this context, within a third of it; empty if there are not enough."""
        place = _stretch(context)
        for reach in range(_REACH + 1):
            around = (self._times.get((rows, place + i), ()) for i in range(-reach, reach + 1))
            if len(times := [*chain.from_iterable(around)]) >= ENOUGH:
                return times
        return self.warm if rows == 1 and place <= _REACH else ()


class Baseline:
    """Measured cost of reading, and of plain decoding per batch size B and context.

    Pass `Ready` and every round of the run to `add`, in order. A round counts if no row of its batch drafted, or if a
    plain pass was timed before it (`Round.plain_s`). First rounds, which may include prefill, and rounds with `Detail`,
    which takes time, do not count.
    """

    def __init__(self) -> None:
        self._batch: dict[str, Round] = {}
        self._passes = PlainTimes()
        self._rests: defaultdict[int, deque[float]] = _windows()
        """Time outside pass and draft, of plain rounds."""
        self._any_rests: defaultdict[int, deque[float]] = _windows()
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
            self._passes.warm = record.plain_s
            return
        if record.observed:  # its times are times of the stream
            return
        batch = self._batch
        if record.request_id in batch or any(other.verify_s != record.verify_s for other in batch.values()):
            batch.clear()
        batch[record.request_id] = record
        if len(batch) < record.rows:
            return
        if all(not row.detail and row.number for row in batch.values()):
            if record.plain_s:
                self._passes.add(record.rows, record.mean_context, record.plain_s)
            self._any_rests[record.rows].append(record.rest_s)
            if not any(row.drafted for row in batch.values()):
                self._passes.add(record.rows, record.mean_context, record.verify_s)
                self._rests[record.rows].append(record.rest_s)
        batch.clear()

    def pass_s(self, rows: int, context: float) -> float | None:
        """Seconds of a target pass over one token of each row at this context; None until measured."""
        passes = self._passes.near(rows, context)
        return median(passes) if passes else None

    def round_s(self, rows: int, context: float) -> float | None:
        """Seconds of a plain round (pass and rest), which is the time per token; None until measured."""
        pass_s = self.pass_s(rows, context)
        plain = self._rests.get(rows, ())
        rests = plain if len(plain) >= ENOUGH else self._any_rests.get(rows, ())
        return pass_s + median(rests) if pass_s is not None and rests else None

    def error(self, rows: int, context: float) -> float:
        """Standard error of `pass_s`, relative to it; infinite until measured."""
        passes = self._passes.near(rows, context)
        if not passes:
            return inf
        middle = median(passes)
        return _MEDIAN * median([abs(each - middle) for each in passes]) / sqrt(len(passes)) / middle


class Spread:
    """Sums over rounds of two values x and t, and the variance of their ratio."""

    def __init__(self) -> None:
        self.rounds = 0
        self.x = self.t = 0.0
        self._xx = self._xt = self._tt = 0.0

    def add(self, x: float, t: float) -> None:
        """Add one round."""
        self.rounds += 1
        self.x, self.t = self.x + x, self.t + t
        self._xx, self._xt, self._tt = self._xx + x * x, self._xt + x * t, self._tt + t * t

    @property
    def variance(self) -> float:
        """Variance of Σx / Σt relative to its square, to first order; infinite for a single round."""
        if self.rounds < 2:
            return inf
        spread = self._xx / self.x**2 - 2 * self._xt / (self.x * self.t) + self._tt / self.t**2
        return max(spread, 0.0) * self.rounds / (self.rounds - 1)


class SpeedupTracker:
    """Accumulates `Speedup` for one reply.

    `measured` is a ratio of two sums over rounds. Its error is the first-order error of that ratio, with the error of
    the plain pass added in quadrature. Each round is compared with the current cost of plain decoding, so that changes
    of the machine's speed do not count as speedup; rounds before that cost is known wait for it. First rounds and
    rounds with `Detail` do not count.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._waiting: list[Round] = []
        """Rounds before the first known cost of plain decoding at their batch size and context."""
        self._draft_s = self._verify_s = self._rest_s = 0.0
        self._pass_s = 0.0
        """Sum of plain pass times, one per round."""
        self._step_s = 0.0
        """Sum of plain pass times, one per drafted position."""
        self._emitted_pass_s = 0.0
        """Sum of plain pass times, one per token emitted."""
        self._spread = Spread()
        """Sums of the plain time of each round's tokens, and of its time."""
        self._last = 1, 0.0
        """Batch size and context of the last round counted."""
        self._lengths: dict[int, float] = {}
        """Draft length to the sum of plain pass times, one per round of that length."""

    @property
    def rounds(self) -> int:
        """Number of rounds counted."""
        return self._spread.rounds

    def add(self, record: Round) -> None:
        """Add one round; add it to the baseline first."""
        if record.detail or not record.number or record.observed:
            return
        self._waiting.append(record)
        if self._baseline.round_s(record.rows, record.mean_context) is not None:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._count(each)

    def _count(self, record: Round) -> None:
        """Compare a round with plain decoding, if its cost is known at the round's batch size and context."""
        at = record.rows, record.mean_context
        pass_s, round_s = self._baseline.pass_s(*at), self._baseline.round_s(*at)
        if pass_s is None or round_s is None:
            return
        length, emitted = record.steps, len(record.emitted)
        self._draft_s += record.draft_s
        self._verify_s += record.verify_s
        self._rest_s += record.rest_s
        self._pass_s += pass_s
        self._step_s += pass_s * length
        self._emitted_pass_s += pass_s * emitted
        self._last = at
        self._spread.add(round_s * emitted, record.seconds)
        self._lengths[length] = self._lengths.get(length, 0.0) + pass_s

    def gain(self, alpha: float | None) -> Speedup | None:
        """Speedup for an α estimate; None if nothing was drafted, no plain rounds were measured, or one round counts.

        Also None where it exceeds τ: the plain passes were slower than the machine is now, as at a start on a busy one.
        """
        if alpha is None or not self._step_s or self.rounds < 2:
            return None
        expected = expected_of_rounds(min(alpha, 1.0), self._lengths)
        passes = self._draft_s + self._verify_s
        plain = self._draft_s + self._pass_s
        measured = self._spread.x / (passes + self._rest_s)
        if measured > _POSSIBLE * self._emitted_pass_s / self._pass_s:
            return None
        return Speedup(
            c=self._draft_s / self._step_s,
            predicted=expected / plain,
            measured=measured,
            error=sqrt(self._baseline.error(*self._last) ** 2 + self._spread.variance),
            acceptance=self._emitted_pass_s / expected,
            passes=plain / passes,
            overhead=measured / (self._emitted_pass_s / passes),
        )


def _windows() -> defaultdict[Any, deque[float]]:
    """The latest measurements by their key."""
    return defaultdict(lambda: deque(maxlen=_WINDOW))


def _stretch(context: float) -> int:
    """Index of the stretch of a context: its first tokens, then equal parts of each doubling."""
    return int(_PER_DOUBLING * log2(context / _FIRST_STRETCH)) + 1 if context >= _FIRST_STRETCH else 0
