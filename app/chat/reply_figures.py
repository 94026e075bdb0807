"""The figures of a reply at one moment: everything that a frame draws of them is read from one such snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.app.chat.thought import ThoughtFigures
from specchat.engine import Metrics, Speedup

LONGEST_COURSE = 200
"""Values kept of a course: no line on a screen is longer."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplyFigures:
    """A snapshot of the figures of one reply. Two of them are the same only if they were taken at once."""

    metrics: Metrics
    gain: Speedup | None
    """Predicted and measured speedup, once there is something to compare with."""
    counted_rounds: int
    """Rounds that `gain` is made of."""
    speeds: tuple[float, ...]
    """Tokens per second of the sliding window, newest last."""
    gammas: tuple[int, ...]
    """Draft length asked for, round by round, newest last."""
    running: bool
    """Whether more rounds may come."""
    thought: ThoughtFigures | None = None
    """Those of the thinking that it begins with, if it does."""
