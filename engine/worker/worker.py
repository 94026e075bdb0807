"""The engine thread's work: take commands, admit, prefill a chunk, run a round.

This is where torch comes in; `engine.engine` imports it inside the thread.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Event
from typing import ClassVar

import torch

from specchat.engine import commands
from specchat.engine.backends.packed_runner import runner_of
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.gamma.acceptance_model import Experiences
from specchat.engine.decoding.planner import Planner
from specchat.engine.device.graphs import FIRST
from specchat.engine.errors import ClosingError, EngineError, errors_as, first_line
from specchat.engine.events import CachedText, CacheUse, Clock, Counted, FinishReason, Loading, Notice, Outbox, Ready
from specchat.engine.kernels.library import KernelError
from specchat.engine.models.catalog import chat_sampling
from specchat.engine.request import Request
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.sequence import Scheduler, SequenceState
from specchat.engine.sequence.template_traits import thinking_values, words_of
from specchat.engine.worker.assembly import OUT_OF_MEMORY, Assemble, Assembly, cache_memory, free_memory
from specchat.engine.worker.notices import Notices
from specchat.engine.worker.prefill import Prefill
from specchat.engine.worker.records import Emission
from specchat.engine.worker.requests import Faults, OpenRequests
from specchat.engine.worker.rounds import PlainPasses, Rounds, time_warm_passes, time_wider_passes
from specchat.engine.worker.side_work import Captures, Keeping, SideWork


@dataclass
class Worker:
    """State of the engine thread. `run` returns after a `Close` command.

    Args:
        config: models, device and capacity.
        inbox: commands from other threads.
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started; stopped while rounds are held back.
        on_ready: called once, when requests are served.
        on_end: called with the id of each request before it is told that it has ended.
        closing: set once the engine is to end; stops the loading.
    """

    is_lane: ClassVar[bool] = False
    """Whether it is one of several lanes. Lanes are compared with each other: plain passes are not timed next to rounds
    that draft. The records of a lane are made in its own turn, not while the next round runs, and all of its CUDA
    graphs are captured at the start, not while requests are served."""

    config: EngineConfig
    inbox: queue.SimpleQueue[commands.Command]
    outbox: Outbox
    clock: Clock
    on_ready: Callable[[Ready, Assembly], None]
    on_end: Callable[[str], None]
    closing: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self._loaded = self._closed = self._paused = False
        self._steps = 0
        """Rounds still to be run while paused."""

    def run(self, assemble: Assemble) -> None:
        """Load with `assemble`, then serve until closed.

        Raises:
            EngineError: the models cannot be loaded.
            ClosingError: the engine is to end before they are.
        """
        self.load(assemble)
        self._keeping.load(self._notices)
        while not self._closed:
            self._take_commands()
            self._requests.admit()
            try:
                self._prefill.run()
                self._round()
            except torch.OutOfMemoryError:
                self._make_room()
            if self._side_work.pending:
                self._emission.flush()
            self._side_work.step()
            self._capture()
        self._requests.end_all(FinishReason.CANCELLED, "")
        self._emission.close()
        self._experiences.save()

    def fail(self, message: str) -> None:
        """Finish every open request with an error: the thread is about to end."""
        if self._loaded:
            try:
                self._requests.end_all(FinishReason.ERROR, message)
            finally:
                self._emission.close()

    # ---- loading

    def load(self, assemble: Assemble) -> Assembly:
        """Load the models; create KV caches and drafters."""
        # Files of others may be damaged in ways that no check covers.
        with errors_as(
            lambda error: (
                f"{self.config.target} cannot be loaded ({type(error).__name__}: {first_line(error)}): "
                "fetch it again, or choose another model"
            ),
            (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
        ):
            try:
                made = self._fitting(assemble)
            except KernelError as error:
                raise EngineError(f"{self.config.target} cannot be loaded: {error}") from error
        plain_s = time_warm_passes(made.target)
        self._put_to_work(made, plain_s)
        self.on_ready(ready_of(made, self._captures, plain_s, self.config.target, self.clock()), made)
        self._notices.tell([*made.notices, *made.performance_warnings()])
        return made

    def _put_to_work(self, made: Assembly, plain_s: tuple[float, ...]) -> None:
        """Create the parts that serve requests."""
        clock = self.clock
        self._made, self._target = made, made.target
        self._notices = Notices(self.outbox, clock)
        models = [made.model.name, made.model.format, *(part.name for part in (*made.drafts, *made.parts.values()))]
        self._experiences = Experiences(self.config.experience, " · ".join(models))
        self._planner = Planner(made.drafters, made.target, self._drop_drafter, self._experiences)
        if made.target.capabilities.ragged:
            self._planner.learn_costs(time_wider_passes(made.target), made.drafters.step_seconds)
        pool, memory = made.target.cache.pool, cache_memory(self.config, made.target.device)
        pool.manage(pool.bytes if memory is None else memory)
        self._scheduler = self._make_scheduler(made)
        self._emission = Emission(held=made.target.device.type == "cuda" or self.is_lane)
        self._requests = OpenRequests(
            made, self._scheduler, self._planner, self._emission, self._notices, self.config, clock, self.on_end
        )
        faults = Faults(self._requests.fail)
        self._prefill = Prefill(self.config, self._scheduler, self._planner, made.target, faults, clock, self._emission)
        plain_passes = None if self.is_lane else PlainPasses(made.target, plain_s)
        runner = runner_of(made.target, self._planner.drafters, self._planner.trim, self._emission.on_launch)
        self._rounds = Rounds(
            made, self._planner, runner, plain_passes, self._requests, self._emission, faults, self._notices, clock
        )
        self._side_work = SideWork(made, self._scheduler)
        self._keeping = Keeping(self.config.kept, made, self._scheduler)
        self._loaded = True

    def _make_scheduler(self, made: Assembly) -> Scheduler:
        return Scheduler(made.target.cache, prefixes=made.target.capabilities.prefixes)

    def _fitting(self, assemble: Assemble) -> Assembly:
        """The first size that there is memory to warm up with."""
        made = assemble(self.config, self._say_loading)
        while True:
            self._captures = Captures(made)
            chunk = self.config.chunk_on(made.target.device.type)
            if self._captures.warm_up(chunk, self._say_loading, complete=self.is_lane):
                return made
            smaller = made.smaller
            del made, self._captures  # their memory is needed for the next
            if smaller is None:
                raise EngineError(OUT_OF_MEMORY)
            free_memory()
            made = smaller()

    def _say_loading(self, stage: str, text: str, fraction: float | None) -> None:
        if self.closing.is_set():
            raise ClosingError
        self.outbox.put(Loading(stage, text, fraction, self.clock()))

    # ---- commands

    def _take_commands(self) -> None:
        """Process all queued commands; wait for one if there is nothing else to do."""
        idle = self._idle and not self._captures.is_next(inf)
        while True:
            held = self._paused and not self._steps and not self._closed
            if idle or held:
                self._emission.release()
            elif self.inbox.empty():
                return
            with self.clock.stopped() if held else nullcontext():
                command = self.inbox.get()
            idle = False
            self._emission.flush()
            self._obey(command)

    def _obey(self, command: commands.Command) -> None:
        match command:
            case commands.Submit():
                self._requests.enqueue(command)
            case commands.Cancel():
                self._requests.cancel(command.request_id)
            case commands.Adjust():
                self._requests.adjust(command)
            case commands.Pause():
                self._paused, self._steps = True, 0
            case commands.Step():
                self._steps += self._paused
            case commands.Resume():
                self._paused = False
            case commands.SetDetail():
                self._requests.set_detail(command.request_id, command.detail)
            case commands.Count():
                self._count(command)
            case commands.ShowCache():
                self.outbox.put(cache_use(self._scheduler, self.clock()))
            case commands.Borrow():
                self._side_work.enqueue(command)
            case commands.KeepTexts():
                self._keeping.save(command)
            case commands.Close():
                self._closed = True

    def _count(self, wanted: commands.Count) -> None:
        with suppress(Exception):  # a template is a program of the model's: a request with it says what it raises
            tokens = len(encode(Request("count", wanted.messages, tools=wanted.tools), self._made.model.tokenizer))
            self.outbox.put(Counted(tokens, self.clock(), wanted.key))

    # ---- work

    def _round(self) -> None:
        rows = [row for row in self._scheduler.rows if self._prefill.is_ready(row)]
        rows = self._requests.with_room(rows)
        if not rows:
            return
        self._steps -= self._steps > 0
        self._rounds.run(rows, partial(self._extend, rows))
        self._scheduler.trim()

    def _extend(self, rows: Sequence[SequenceState]) -> bool:
        """Reserve cache blocks for several rounds; return whether these may be run.

        All prompts have been read, and no client steps through the rounds.
        """
        current = self._scheduler.rows  # a row may just have failed
        if self._paused or not all(row in rows for row in current):
            return False
        return all(self._scheduler.extend(row, self._target.capabilities.rounds) for row in current)

    @property
    def _idle(self) -> bool:
        return not self._scheduler.rows and not self._scheduler.waiting and not self._side_work.pending

    def _capture(self) -> None:
        """Capture one CUDA graph: any that is planned while there is nothing else to do, else what a pass has lacked.

        So a request waits for one capture at most, and passes run eagerly until theirs have been captured.
        """
        if self._closed or not self._captures.is_next(inf if self._idle else FIRST):
            return
        self._emission.release()
        if self._captures.next():
            self.outbox.put(self._captures.made(self.clock()))
        else:
            self._notices.tell(self._made.performance_warnings())

    def _make_room(self) -> None:
        """The device is out of memory: end the youngest request and continue with the others."""
        torch.cuda.empty_cache()
        row = max(self._scheduler.rows, key=lambda row: row.admitted_at, default=None)
        if row is not None:  # else the memory was short when the last one ended
            message = "the device is out of memory: run fewer replies at once, or lower --context"
            self._requests.fail(row, message)

    def _drop_drafter(self, row: SequenceState, error: Exception) -> None:
        text = f"the {row.drafter} drafter failed ({error}): it drafts no more for this reply"
        row.outbox.put(Notice(row.request.request_id, text, self.clock()))
        self._planner.give_up(row)


def cache_use(scheduler: Scheduler, at: float) -> CacheUse:
    """Contents of the cache."""
    pool = scheduler.pool
    blocks, shared = pool.filled_by()
    running = {row.request.request_id: pool.unshared(row.slot) for row in scheduler.rows}
    texts = tuple(
        CachedText(name, blocks[name] + running.get(name, 0), shared[name], name in running)
        for name in dict.fromkeys((*blocks, *running))
    )
    return CacheUse(BLOCK, pool.bytes // pool.blocks, pool.blocks, texts, at)


def ready_of(made: Assembly, captures: Captures, plain_s: tuple[float, ...], spec: str, at: float) -> Ready:
    """The event that the engine is ready.

    Args:
        made: what the engine runs with.
        captures: of CUDA graphs, so far.
        plain_s: seconds of plain passes.
        spec: `EngineConfig.target`.
        at: the time.
    """
    target, device, tokenizer = made.target, made.target.device, made.model.tokenizer
    pool, reserved, captured = target.cache.pool, not target.capabilities.packed, captures.made(at)
    values, on_gpu = thinking_values(tokenizer), device.type == "cuda"
    return Ready(
        target=made.model.name,
        draft=", ".join(part.name for part in (*made.drafts, *made.parts.values())) or None,
        drafters=tuple(made.drafters),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if on_gpu else "CPU",
        device_uuid=str(torch.cuda.get_device_properties(device).uuid) if on_gpu else "",
        dtype=made.model.format,
        context=target.context,
        model_context=made.model.context,
        slots=target.cache.slots,
        weight_bytes=made.weight_bytes,
        cache_bytes=made.cache_bytes + made.graph_bytes if reserved else min(made.cache_bytes, pool.bytes),
        slot_bytes=target.cache.columns * target.cache.column_bytes + target.cache.state_bytes,
        kept_bytes=pool.bytes,
        state_bytes=target.cache.state_bytes,
        graphs=captured.graphs,
        graph_bytes=captured.graph_bytes,
        warm_up_s=captured.warm_up_s,
        at=at,
        plain_s=plain_s,
        thinking_switch=bool(values),
        thinking_values=tuple(values),
        template_words=words_of(tokenizer.chat_template),
        conversations=made.model.start is None,
        tools=find_call_format(tokenizer) is not None,
        sampling=chat_sampling(spec, made.model.recommended),
    )
