"""Counts the rounds of a reply and makes snapshots of its figures. A frame draws all figures from one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.app.chat.thinking import ThoughtFigures
from specchat.engine import Admitted, Baseline, Metrics, Round, Speedup, SpeedupTracker

LONGEST_COURSE = 200
"""Values kept for a sparkline: no line on a screen is longer."""
SAMPLE_S = 0.25
"""Seconds of rounds for each sample of the speed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplyFigures:
    """A snapshot of the figures of one reply. Snapshots compare by identity."""

    metrics: Metrics
    gain: Speedup | None
    """Predicted and measured speedup, once there are plain rounds to compare with."""
    counted_rounds: int
    """Number of rounds that `gain` is computed from."""
    speeds: tuple[float, ...]
    """Tokens per second of the sliding window, newest last."""
    gammas: tuple[int, ...]
    """Requested draft length of each round, newest last."""
    running: bool
    """Whether more rounds may follow."""
    thought: ThoughtFigures | None = None
    """Figures of its thinking, if any."""


class ReplyMeter:
    """The measures of one request; `baseline` has the plain rounds that its speedup is measured against."""

    def __init__(self, baseline: Baseline) -> None:
        self.metrics = Metrics()
        self._baseline = baseline
        self._gains = SpeedupTracker(baseline)
        self._speeds: list[float] = []
        """Tokens per second of the sliding window, one sample each `SAMPLE_S`."""
        self._sampled_at = 0.0

    def add(self, record: Round) -> None:
        """Count a round."""
        self._baseline.add(record)
        self._gains.add(record)
        self.metrics.add(record)
        speed = self.metrics.recent_tokens_per_second
        if self.metrics.rounds == 1:
            self._sampled_at = record.at  # the speed of one round says little
        elif speed is not None and record.at >= self._sampled_at + SAMPLE_S:
            self._speeds.append(speed)
            self._sampled_at = record.at

    def recount(self, admitted: Admitted | None, rounds: Sequence[Round]) -> None:
        """Replace the counted rounds by these; speedup and speeds stay."""
        self.metrics = Metrics()
        for record in (*([admitted] if admitted is not None else ()), *rounds):
            self.metrics.add(record)

    def figures(self, rounds: Sequence[Round], thought: ThoughtFigures | None, *, running: bool) -> ReplyFigures:
        """A snapshot of the figures; `rounds` are those of the request."""
        return ReplyFigures(
            metrics=self.metrics.copy(),
            gain=self._gains.gain(self.metrics.alpha),
            counted_rounds=self._gains.rounds,
            speeds=tuple(self._speeds[-LONGEST_COURSE:]),
            gammas=tuple(record.gamma for record in rounds[-LONGEST_COURSE:]),
            running=running,
            thought=thought,
        )
