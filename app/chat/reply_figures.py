"""The figures of one reply: counts over the rounds of its request."""

from dataclasses import dataclass

from specchat import engine
from specchat.app.chat.thinking import ThoughtFigures

LONGEST_COURSE = 200
"""Values kept for a sparkline: no line on a screen is longer."""
SAMPLE_S = 0.25
"""Seconds of rounds for each sample of the speed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplyFigures:
    """A snapshot of the figures of one reply. Snapshots compare by identity."""

    metrics: engine.Metrics
    gain: engine.Speedup | None
    """Predicted and measured speedup, once there are plain rounds to compare with; final when the reply has ended."""
    counted_rounds: int
    """Number of rounds that `gain` is computed from."""
    speeds: tuple[float, ...]
    """Tokens per second of the sliding window, newest last."""
    gammas: tuple[int, ...]
    """Drafted positions of each round, newest last."""
    running: bool
    """Whether more rounds may follow."""
    thought: ThoughtFigures | None = None
    """Figures of its thinking, if any."""


class Counts:
    """Running figures of a reply.

    Args:
        baseline: Plain rounds that the speedup is measured against.
    """

    def __init__(self, baseline: engine.Baseline) -> None:
        self.metrics = engine.Metrics()
        self.speeds: list[float] = []
        """Tokens per second of the sliding window, one sample each `SAMPLE_S`."""
        self._baseline = baseline
        self._gains = engine.SpeedupTracker(baseline)
        self._sampled_at = 0.0

    def add(self, record: engine.Round) -> None:
        """Count a round."""
        self._baseline.add(record)
        self._gains.add(record)
        self.metrics.add(record)
        speed = self.metrics.recent_tokens_per_second
        if self.metrics.rounds == 1:
            self._sampled_at = record.at  # the speed of one round says little
        elif speed is not None and record.at >= self._sampled_at + SAMPLE_S:
            self.speeds.append(speed)
            self._sampled_at = record.at

    def measure(self, request_id: str = "") -> engine.Measured:
        """The speedup by now."""
        gain = self._gains.gain(self.metrics.alpha)
        return engine.Measured(request_id, gain, self._gains.rounds, self._baseline.read_s)
