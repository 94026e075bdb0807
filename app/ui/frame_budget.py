"""Frame budget: the time between two frames, such that drawing takes a fixed share of the processor and no more.

Where the engine computes on all cores, whatever draws takes from its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from specchat.app.chat.reply import Stage
from specchat.app.ui.pace import FRAME_S
from specchat.engine import usable_cores

SHARE = 0.01
"""Of all cores. The kernels lose about as much by it: they leave a core to whoever draws (`event_loop.py`)."""
SLOWEST_S = 1 / 4
"""Text that comes less often than this does not flow."""
IDLE_S = FIRST_S = 1 / 8
"""Between two frames while no reply runs, and of the first reply until it is known what a frame costs."""
NEWEST = 1 / 8
"""Weight of the newest frame in the mean: figures are taken with one of several frames, and cost more."""
STEADY = 0.8, 1.25
"""The time between frames changes only by a factor beyond these."""


class FrameBudget:
    """Chooses the time between two frames by the processor time that frames take.

    Until a reply's first token comes nothing is drawn, and frames cost next to nothing: they follow each other fast, so
    that it is shown at once.

    Args:
        cores: how many there are for drawing and computing.
        spent: processor time of the thread that draws, in seconds.
    """

    def __init__(self, cores: int | None = None, spent: Callable[[], float] = time.thread_time) -> None:
        self._share = SHARE * (usable_cores() if cores is None else cores)
        self._spent = spent
        self._before = spent()
        self._stage: Stage | None = None
        self._chosen_s = FIRST_S
        self._cost = FIRST_S * self._share
        """Mean of the latest frames, in seconds."""

    def after(self, stage: Stage | None) -> float:
        """Seconds to the next frame, behind one whose furthest reply is at `stage`; None if none runs."""
        spent = self._spent()
        if self._stage is Stage.ANSWERING:
            self._learn(spent - self._before)
        self._before, self._stage = spent, stage
        if stage is None:
            return IDLE_S
        return self._chosen_s if stage is Stage.ANSWERING else FRAME_S

    def _learn(self, cost: float) -> None:
        """Take in what the frame before has cost; a layout of the whole screen counts as a frame that is too dear."""
        self._cost += NEWEST * (min(cost, SLOWEST_S * self._share) - self._cost)
        wanted = min(max(self._cost / self._share, FRAME_S), SLOWEST_S)
        less, more = STEADY
        if not less < wanted / self._chosen_s < more:
            self._chosen_s = wanted
