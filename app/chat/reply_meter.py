"""Counts the rounds of a reply as they come, and makes the figures that are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.app.chat.reply_figures import LONGEST_COURSE, ReplyFigures
from specchat.app.chat.thought import ThoughtFigures
from specchat.engine import Admitted, Baseline, Metrics, Round, SpeedupTracker

SAMPLE_S = 0.25
"""Seconds of rounds for each sample of the speed."""


class ReplyMeter:
    """The measures of one request.

    Args:
        baseline: Plain rounds that its speedup is measured against.
    """

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
        """Count these rounds in the place of those before; times and speeds stay."""
        self.metrics = Metrics()
        for record in (*([admitted] if admitted is not None else ()), *rounds):
            self.metrics.add(record)

    def figures(self, rounds: Sequence[Round], thought: ThoughtFigures | None, *, running: bool) -> ReplyFigures:
        """A snapshot of the figures.

        Args:
            rounds: Of the request.
            thought: Those of the thinking that its reply begins with.
            running: Whether more rounds may come.
        """
        return ReplyFigures(
            metrics=self.metrics.copy(),
            gain=self._gains.gain(self.metrics.alpha),
            counted_rounds=self._gains.rounds,
            speeds=tuple(self._speeds[-LONGEST_COURSE:]),
            gammas=tuple(record.gamma for record in rounds[-LONGEST_COURSE:]),
            running=running,
            thought=thought,
        )
