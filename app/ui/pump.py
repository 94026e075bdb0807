"""The pump drains an engine, a replay, or two lanes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from textual.message_pump import MessagePump
from textual.timer import Timer

from specchat.app.chat.reply_stage import Stage
from specchat.engine import Record, usable_cores


@dataclass(eq=False)
class Pump:
    """Drains a source with every frame, hands its records on, and has the screen drawn."""

    _timers: MessagePump
    """The app or the screen whose timers it runs on; it stops with them."""
    _drain: Callable[[], Iterable[Record]]
    """Hands records to the replies they belong to; returns the records that concern the engine as a whole."""
    _stage: Callable[[], Stage | None]
    """The stage of the running reply that has got furthest; None where none runs."""
    _handle: Callable[[Record], None]
    """Called with each record that concerns the engine as a whole."""
    _draw: Callable[[], None]
    """Called once the records of a frame are taken in."""
    pace: Pace = field(default_factory=lambda: Pace())
    """How often it runs; what draws follows it."""
    _frames: Timer | None = None
    _budget: FrameBudget | None = None

    def start(self) -> None:
        """Run with every frame from here on."""
        self._frames = self._timers.set_interval(self.pace.frame_s, self.run)

    def suit(self, device: str) -> None:
        """Use a frame budget if the engine runs on the CPU; `device` is named as in `Ready`."""
        self._budget = FrameBudget() if device.startswith("cpu") else None

    def run(self) -> None:
        """Run once."""
        for record in self._drain():
            self._handle(record)
        self._draw()
        frame_s = FRAME_S if self._budget is None else self._budget.after(self._stage())
        if frame_s != self.pace.frame_s and self._frames is not None:
            self._frames.stop()
            self.pace.frame_s = frame_s
            self.start()


FRAME_S = 1 / 30
FOLLOW_S = 1 / 10
"""Minimum time between scrolling to the end of a reply, which draws all lines and the scrollbar."""
FIGURES_S, FIGURES_FRAMES = 1 / 2, 6
"""Minimum interval between updates of figures, in seconds and in frames: they must stay readable, and cost as much as
several frames of text."""
TURNS_S = 1 / 15
"""Time between frames up to which each of several replies is drawn with every other frame."""


@dataclass(slots=True)
class Pace:
    """Seconds between two frames, and what not every frame does. One screen's pump sets it, its widgets share it."""

    frame_s: float = FRAME_S

    @property
    def follow_every(self) -> int:
        """Number of frames in which the view follows the end of a reply once."""
        return max(round(FOLLOW_S / self.frame_s), 1)

    @property
    def figures_every(self) -> int:
        """Number of frames in which figures are taken once; line, panel and timeline show the same ones."""
        return max(round(FIGURES_S / self.frame_s), FIGURES_FRAMES)

    @property
    def turns(self) -> int:
        """Number of frames in which each of several replies side by side is drawn once."""
        return 2 if self.frame_s <= TURNS_S else 1


SHARE = 0.01
"""Share of all cores. The kernels lose about as much: they leave a core free while the app draws (`event_loop.py`)."""
SLOWEST_S = 1 / 4
"""Maximum time between frames: slower text does not look fluent."""
IDLE_S = FIRST_S = 1 / 8
"""Time between frames while no reply runs, and in the first reply until the cost of a frame is known."""
NEWEST = 1 / 8
"""Weight of the newest frame in the mean: figures are taken with one of several frames, and cost more."""
STEADY = 0.8, 1.25
"""The time between frames changes only by a factor outside of this range."""


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
        """Seconds to the next frame; `stage` is that of the most advanced running reply, None without one."""
        spent = self._spent()
        if self._stage is Stage.ANSWERING:
            self._learn(spent - self._before)
        self._before, self._stage = spent, stage
        if stage is None:
            return IDLE_S
        return self._chosen_s if stage is Stage.ANSWERING else FRAME_S

    def _learn(self, cost: float) -> None:
        """Update the mean with the cost of the previous frame; the cost of a full layout is clipped."""
        self._cost += NEWEST * (min(cost, SLOWEST_S * self._share) - self._cost)
        wanted = min(max(self._cost / self._share, FRAME_S), SLOWEST_S)
        less, more = STEADY
        if not less < wanted / self._chosen_s < more:
            self._chosen_s = wanted
