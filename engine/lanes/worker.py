"""Worker of an engine with lanes: one thread that gives one lane a turn at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import ClassVar

import torch

from specchat.engine.cache.block_pool import BlockStore
from specchat.engine.commands import Cancel, Close, Command, Submit
from specchat.engine.config import EngineConfig
from specchat.engine.events import Clock, FinishReason, Outbox, Ready
from specchat.engine.lanes.order import Order, next_lane
from specchat.engine.request import Message, Request
from specchat.engine.sequence.sequence import Scheduler, SequenceState
from specchat.engine.worker.assembly import Assemble, Assembly
from specchat.engine.worker.worker import Worker

WARM_UP = "Say hello."
WARM_UP_TOKENS, WARM_UP_GAMMA = 8, 4


class LaneScheduler(Scheduler):
    """Scheduler that reuses only whole prefill chunks of an earlier prompt, never its reply.

    How much of a reply is cached depends on how it was decoded; a prompt is prefilled the same way in all lanes.

    Args:
        cache: as for the base class.
        chunk: tokens per prefill chunk.
        prefixes: as for the base class.
    """

    def __init__(self, cache: BlockStore, chunk: int, *, prefixes: bool) -> None:
        super().__init__(cache, prefixes=prefixes)
        self._chunk = chunk

    def usable(self, length: int) -> int:
        """Whole chunks."""
        return length - length % self._chunk

    def longer_prefix(self, row: SequenceState) -> bool:  # noqa: ARG002
        """False: every lane prefills its own prompt."""
        return False

    def shared(self, row: SequenceState) -> int:
        """The prompt without the reply."""
        return min(row.cached, row.reply_begin - 1)

    def prefill_batch(self, rows: Sequence[SequenceState], *_: object, **__: object) -> list[SequenceState]:
        """The first alone."""
        return [rows[0]]


class LaneWorker(Worker):
    """One lane: a worker with KV cache, drafters, cost model and separate clock."""

    is_lane: ClassVar[bool] = True

    def __init__(
        self,
        config: EngineConfig,
        outbox: Outbox,
        readies: list[Ready],
        on_end: Callable[[str], None] = lambda _: None,
        closing: Event | None = None,
    ) -> None:
        commands, clock = queue.SimpleQueue[Command](), Clock(runs=False)
        super().__init__(
            config, commands, outbox, clock, lambda ready, _: readies.append(ready), on_end, closing or Event()
        )
        self.began = 0.0
        """Clock reading when the lane was last idle and a request was submitted."""

    @property
    def busy(self) -> bool:
        """Whether a request is running or waiting."""
        return bool(self._scheduler.rows or self._scheduler.waiting)

    @property
    def seconds(self) -> float:
        """Seconds worked since the lane was last idle."""
        return self.clock() - self.began

    def _make_scheduler(self, made: Assembly) -> Scheduler:
        cache, prefixes = made.target.cache, made.target.capabilities.prefixes
        return LaneScheduler(cache, self.config.chunk_on(made.target.device.type), prefixes=prefixes)

    def warm_up(self) -> None:
        """Answer a short hidden prompt, so that one-time costs do not count in a lane's first reply."""
        request = Request("warm-up", (Message("user", WARM_UP),), gamma=WARM_UP_GAMMA, max_tokens=WARM_UP_TOKENS)
        self.take(Submit(request, Outbox(), self.clock()))
        while self.busy:
            self.turn()

    def take(self, command: Submit | Cancel) -> None:
        """Process one command; a request's time counts from here."""
        if isinstance(command, Submit):
            if not self.busy:
                self.began = self.clock()
            command = replace(command, at=self.clock())
        self.inbox.put(command)
        self._take_commands()

    def turn(self) -> None:
        """Admit waiting requests, then read prompts or run a round, or some short ones."""
        with self.clock.running():
            self._requests.admit()
            try:
                if all(self._prefill.is_ready(row) for row in self._scheduler.rows):
                    self._round()
                else:
                    self._prefill.run()
                if self._target.device.type == "cuda":  # work queued by this lane must not count on the other's clock
                    torch.cuda.synchronize(self._target.device)
                self._emission.finish()
            except torch.OutOfMemoryError:
                self._make_room()

    def end(self) -> None:
        """Cancel all requests."""
        self._requests.end_all(FinishReason.CANCELLED, "")
        self._emission.close()


@dataclass
class LanesWorker:
    """State of the engine thread with lanes; the counterpart of `Worker`.

    Args:
        configs: one per lane.
        commands: from other threads.
        outbox: for events that concern the engine as a whole.
        order: called before every turn.
        on_ready: called once, with the `Ready` and the assembly of every lane.
        on_end: called with lane and id of each request before it is told that it has ended.
        closing: set once the engine is to end; stops the loading.
    """

    configs: Sequence[EngineConfig]
    commands: queue.SimpleQueue[Command]
    outbox: Outbox
    order: Callable[[], Order]
    on_ready: Callable[[Sequence[Ready], Sequence[Assembly]], None]
    on_end: Callable[[int, str], None]
    closing: Event

    def __post_init__(self) -> None:
        self._readies: list[Ready] = []
        self._lanes = [
            LaneWorker(config, self.outbox, self._readies, partial(self.on_end, lane), self.closing)
            for lane, config in enumerate(self.configs)
        ]
        self._closed = False

    def run(self, assemble: Assemble) -> None:
        """Load the lanes with `assemble`, then serve until closed.

        Raises:
            EngineError: the models of a lane cannot be loaded.
            ClosingError: the engine is to end before they are.
        """
        made = [lane.load(assemble) for lane in self._lanes]
        for lane in self._lanes:
            lane.warm_up()
        self.on_ready(self._readies, made)
        while not self._closed:
            self._take_commands()
            busy = [i for i, lane in enumerate(self._lanes) if lane.busy]
            if busy:
                self._lanes[next_lane(self.order(), busy, [lane.seconds for lane in self._lanes])].turn()
        for lane in self._lanes:
            lane.end()

    def fail(self, message: str) -> None:
        """Finish all open requests with an error, before the thread ends."""
        for lane in self._lanes:
            lane.fail(message)

    def _take_commands(self) -> None:
        """Process queued commands; blocks for one if no lane is busy."""
        idle = not any(lane.busy for lane in self._lanes)
        while True:
            try:
                command = self.commands.get(block=idle)
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
