"""The work of an engine with lanes: one thread, one turn of one lane at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine.assembly import Assemble, Assembly
from engine.commands import Cancel, Close, Command, Submit
from engine.config import EngineConfig
from engine.events import Ready
from engine.lanes import LaneClock, Order, next_lane
from engine.loop import Loop
from engine.outbox import Outbox
from engine.progress import Progress
from engine.row import Row
from engine.scheduler import Placement, Scheduler


class LaneScheduler(Scheduler[Submit]):
    """Uses again only what every lane has: whole chunks of the earlier turn's prompt, never its reply.

    How much of a reply is in the cache depends on how it was decoded; a prompt is read the same way everywhere.

    Args:
        slots: rows of the cache.
        chunk: prompt tokens that are fed in one pass.
    """

    def __init__(self, slots: int, chunk: int) -> None:
        super().__init__(slots)
        self._chunk = chunk

    def place(self, prompt: list[int]) -> Placement:
        """As the base class, in whole chunks."""
        found = super().place(prompt)
        return replace(found, length=found.length - found.length % self._chunk)

    def lend(self, row: Row) -> None:
        """Every lane reads its own prompt."""

    def retire(self, row: Row, *, keep: bool = True) -> None:
        """As the base class, and the reply is forgotten."""
        super().retire(row, keep=keep)
        slot = self._slots[row.slot]
        slot.tokens = slot.tokens[: row.prompt_length - row.continued - 1]


class Lane(Loop):
    """One lane: a loop with models, cache, drafters and cost table of its own, on a clock of its own."""

    def __init__(self, config: EngineConfig, outbox: Outbox, readies: list[Ready]) -> None:
        self.clock = LaneClock()
        self.began = 0.0
        """What the clock showed when the present request was submitted."""
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        super().__init__(config, self._inbox, outbox, self.clock, readies.append)

    @property
    def busy(self) -> bool:
        """Whether there is work."""
        return bool(self._scheduler.rows or self._scheduler.waiting)

    @property
    def seconds(self) -> float:
        """How long the lane has worked since it was last idle."""
        return self.clock() - self.began

    def load(self, assemble: Assemble) -> Assembly:
        """Make the models, caches and drafters."""
        kept: list[Assembly] = []

        def keep(config: EngineConfig, progress: Progress) -> Assembly:
            kept.append(assemble(config, progress))
            return kept[0]

        self._load(keep)
        self._scheduler = LaneScheduler(kept[0].target.cache.slots, self._config.prefill_chunk)
        return kept[0]

    def take(self, command: Submit | Cancel) -> None:
        """Take one command in; a request is timed from here on."""
        if isinstance(command, Submit):
            if not self.busy:
                self.began = self.clock()
            command = replace(command, at=self.clock())
        self._inbox.put(command)
        self._take_commands()

    def turn(self) -> None:
        """Admit what waits, then one chunk of a prompt or one round."""
        with self.clock.running():
            self._admit()
            try:
                if all(row.prefilled for row in self._scheduler.rows):
                    self._round()
                else:
                    self._prefill()
                if self._target.device.type == "cuda":  # what this lane has begun is not for the other's clock
                    torch.cuda.synchronize(self._target.device)
            except torch.OutOfMemoryError:
                self._make_room()

    def end(self) -> None:
        """Cancel what is left."""
        self._wind_up()


class LaneLoop:
    """Everything the thread owns; the counterpart of `Loop` for lanes.

    Args:
        configs: one per lane.
        commands: what the other threads ask for.
        outbox: for events that concern the engine as a whole.
        order: asked before every turn.
        on_ready: called once, with the `Ready` and the assembly of every lane.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        commands: queue.SimpleQueue[Command],
        outbox: Outbox,
        order: Callable[[], Order],
        on_ready: Callable[[Sequence[Ready], Sequence[Assembly]], None],
    ) -> None:
        self._commands = commands
        self._order = order
        self._on_ready = on_ready
        self._readies: list[Ready] = []
        self._lanes = [Lane(config, outbox, self._readies) for config in configs]
        self._closed = False

    def run(self, assemble: Assemble) -> None:
        """Load with `assemble`, lane by lane, then serve until closed.

        Raises:
            EngineError: the models of a lane cannot be loaded.
        """
        made = [lane.load(assemble) for lane in self._lanes]
        self._on_ready(self._readies, made)
        while not self._closed:
            self._take_commands()
            busy = [i for i, lane in enumerate(self._lanes) if lane.busy]
            if busy:
                self._lanes[next_lane(self._order(), busy, [lane.seconds for lane in self._lanes])].turn()
        for lane in self._lanes:
            lane.end()

    def fail(self, message: str) -> None:
        """Finish every open request with an error: the thread is about to end."""
        for lane in self._lanes:
            lane.fail(message)

    def _take_commands(self) -> None:
        """Everything that was asked meanwhile; waits where no lane has anything to do."""
        idle = not any(lane.busy for lane in self._lanes)
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return
            idle = False
            match command:
                case Submit():
                    self._lanes[command.lane].take(command)
                case Cancel():
                    for lane in self._lanes:
                        lane.take(command)
                case Close():
                    self._closed = True
