"""The engine thread's work: take commands, admit, prefill a chunk, run a round, say what happened.

This is where torch comes in; `engine.engine` imports it inside the thread.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from engine.assembly import Assemble, warm_up
from engine.commands import Adjust, Cancel, Close, Command, Pause, Resume, SetDetail, Step, Submit
from engine.commit import commit, record
from engine.config import EngineConfig
from engine.drafting import Drafting
from engine.draws import fresh_seed
from engine.errors import EngineError
from engine.events import Admitted, Finished, FinishReason, Loading, Notice, Prefilled, Ready
from engine.outbox import Outbox
from engine.outcome import Outcome
from engine.request import AUTO
from engine.round import Timing, run_round
from engine.row import Row
from engine.scheduler import Scheduler
from engine.text import ReplyText, encode
from engine.to_device import to_device


class Loop:
    """Everything the thread owns. `run` returns when it is told to close.

    Args:
        config: models, device and room.
        commands: what the other threads ask for.
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started.
        on_ready: called once, when requests are served.
    """

    def __init__(
        self,
        config: EngineConfig,
        commands: queue.SimpleQueue[Command],
        outbox: Outbox,
        clock: Callable[[], float],
        on_ready: Callable[[Ready], None],
    ) -> None:
        self._config = config
        self._commands = commands
        self._outbox = outbox
        self._clock = clock
        self._on_ready = on_ready
        self._scheduler: Scheduler[Submit] = Scheduler(0)
        self._closed = False
        self._paused = False
        self._steps = 0
        """Rounds still to be run while paused."""

    def run(self, assemble: Assemble) -> None:
        """Load with `assemble`, then serve until closed.

        Raises:
            EngineError: the models cannot be loaded.
        """
        self._load(assemble)
        while not self._closed:
            self._take_commands()
            self._admit()
            try:
                self._prefill()
                self._round()
            except torch.OutOfMemoryError:
                self._make_room()
        self._wind_up()

    def fail(self, message: str) -> None:
        """Finish every open request with an error: the thread is about to end."""
        for row in self._scheduler.rows:
            self._finish(row, FinishReason.ERROR, message)
        while self._scheduler.waiting:
            self._refuse(self._scheduler.waiting.popleft(), FinishReason.ERROR, message)

    def _wind_up(self) -> None:
        """Nothing is served any more."""
        for row in self._scheduler.rows:
            self._finish(row, FinishReason.CANCELLED)
        for waiting in self._scheduler.waiting:
            self._refuse(waiting, FinishReason.CANCELLED, "")

    # ---- loading

    def _load(self, assemble: Assemble) -> None:
        made = assemble(self._config, self._say_loading)
        self._model, self._target = made.model, made.target
        self._penalties = made.penalties
        self._drafting = Drafting(made.drafters, made.target, self._drop_drafter)
        self._scheduler = Scheduler(made.target.cache.slots)
        on_gpu = made.target.device.type == "cuda"
        self._say_loading("warm-up", "warming up, compiling what is not compiled yet" if on_gpu else "warming up", None)
        notices = [*made.notices, *warm_up(made)]
        device = made.target.device
        self._on_ready(
            Ready(
                target=made.model.name,
                draft=next((part.name for part in (made.draft, made.head) if part), None),
                drafters=tuple(made.drafters),
                device=device.type,
                device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
                dtype=str(made.model.model.dtype).removeprefix("torch."),
                context=made.target.context,
                slots=made.target.cache.slots,
                weight_bytes=made.weight_bytes,
                cache_bytes=made.cache_bytes,
                at=self._clock(),
            )
        )
        for text in notices:
            self._outbox.put(Notice(None, text, self._clock()))

    def _say_loading(self, stage: str, text: str, fraction: float | None) -> None:
        self._outbox.put(Loading(stage, text, fraction, self._clock()))

    # ---- commands and admission

    def _take_commands(self) -> None:
        """Everything that was asked meanwhile; waits where there is nothing else to do."""
        idle = not self._scheduler.rows and not self._scheduler.waiting
        while True:
            held = self._paused and not self._steps and not self._closed
            try:
                command = self._commands.get(block=idle or held)
            except queue.Empty:
                return
            idle = False
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Submit():
                self._enqueue(command)
            case Cancel():
                self._cancel(command.request_id)
            case Adjust():
                self._adjust(command)
            case Pause():
                self._paused, self._steps = True, 0
            case Step():
                self._steps += self._paused
            case Resume():
                self._paused = False
            case SetDetail():
                self._set_detail(command.request_id, command.detail)
            case Close():
                self._closed = True

    def _enqueue(self, submitted: Submit) -> None:
        if len(self._scheduler.waiting) < self._config.queue:
            self._scheduler.waiting.append(submitted)
            return
        message = f"{self._config.queue} requests are waiting already: try again when some have finished"
        self._refuse(submitted, FinishReason.ERROR, message)

    def _cancel(self, request_id: str) -> None:
        for row in self._scheduler.rows:
            if row.request.request_id == request_id:
                self._finish(row, FinishReason.CANCELLED)
        for waiting in [w for w in self._scheduler.waiting if w.request.request_id == request_id]:
            self._scheduler.waiting.remove(waiting)
            self._refuse(waiting, FinishReason.CANCELLED, "")

    def _adjust(self, wanted: Adjust) -> None:
        drafter, gamma = wanted.drafter, wanted.gamma
        for row in self._scheduler.rows:
            if row.request.request_id == wanted.request_id and drafter in (AUTO, *self._drafting.drafters):
                self._drafting.change(row, self._drafting.named(drafter), gamma)
        waiting = self._scheduler.waiting
        for number, other in enumerate(waiting):
            if other.request.request_id == wanted.request_id:
                waiting[number] = replace(other, request=replace(other.request, drafter=drafter, gamma=gamma))

    def _set_detail(self, request_id: str, detail: int) -> None:
        for row in self._scheduler.rows:
            if row.request.request_id == request_id:
                row.request = replace(row.request, detail=detail)
        for place, waiting in enumerate(self._scheduler.waiting):
            if waiting.request.request_id == request_id:
                request = replace(waiting.request, detail=detail)
                self._scheduler.waiting[place] = replace(waiting, request=request)

    def _admit(self) -> None:
        while self._scheduler.waiting and self._scheduler.has_room:
            submitted = self._scheduler.waiting.popleft()
            try:
                self._start(submitted)
            except EngineError as error:
                self._refuse(submitted, FinishReason.ERROR, str(error))

    def _start(self, submitted: Submit) -> None:
        request = submitted.request
        drafter = self._drafting.named(request.drafter)
        request.sampling.check_vocabulary(self._model.vocab_size)
        prompt = [*encode(request, self._model.tokenizer), *submitted.continuation]
        if len(prompt) >= self._target.context:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens and the context holds {self._target.context}: "
                "shorten it, start a new chat or raise --context"
            )
        now = self._clock()
        place = self._scheduler.place(prompt)
        if place.source != place.slot and place.length:
            self._target.cache.copy(place.source, place.slot, place.length)
        row = Row(
            request=request,
            outbox=submitted.outbox,
            slot=place.slot,
            tokens=prompt,
            prompt_length=len(prompt),
            cached=place.length,
            seed=fresh_seed() if request.sampling.seed is None else request.sampling.seed,
            text=ReplyText(self._model.tokenizer, request.stop),
            drafter="none" if request.gamma == 0 else drafter,
            admitted_at=now,
            continued=len(submitted.continuation),
        )
        self._scheduler.admit(row)
        self._drafting.admit(row)
        row.outbox.put(Admitted(request.request_id, len(prompt), row.cached, now - submitted.at, now))

    def _refuse(self, submitted: Submit, reason: FinishReason, message: str) -> None:
        submitted.outbox.put(Finished(submitted.request.request_id, reason, "", message, self._clock()))

    # ---- work

    def _prefill(self) -> None:
        """One chunk of the prompt that came first, so that running rows wait for no more than that."""
        row = next((row for row in self._scheduler.rows if not row.prefilled), None)
        if row is None:
            return
        started = self._clock()
        lent = self._scheduler.lend(row)
        if lent is not None and (length := self._drafting.lend(row, lent.source, lent.length)) > row.cached:
            self._target.cache.copy(lent.source, lent.slot, length)
            row.cached = length
        chunk = row.tokens[row.cached : min(row.cached + self._config.prefill_chunk, len(row.tokens) - 1)]
        if chunk:
            tapped = self._target.prefill(to_device([chunk], self._target.device), [row.slot], [row.cached])
            self._drafting.absorb([row], tapped)
            row.cached += len(chunk)
        if row.rounds:  # a drafter that was changed to had to see it
            return
        now = self._clock()
        row.outbox.put(Prefilled(row.request.request_id, row.cached, row.prompt_length, now - started, now))

    def _round(self) -> None:
        rows = [row for row in self._scheduler.rows if row.prefilled]
        if not rows:
            return
        self._steps -= self._steps > 0
        plan, outcomes, timing = run_round(self._target, rows, self._drafting, self._penalties)
        self._drafting.learn(rows, plan, outcomes, timing.draft, timing.verify, self._rest(timing))
        for row, outcome in zip(rows, outcomes, strict=True):
            self._conclude(row, outcome, timing, len(rows))

    @staticmethod
    def _rest(timing: Timing) -> float:
        """What the round has taken so far beside draft and verification."""
        return time.perf_counter() - timing.started - timing.draft - timing.verify

    def _make_room(self) -> None:
        """The device is out of memory: the youngest request gives way, the others go on."""
        torch.cuda.empty_cache()
        row = max(self._scheduler.rows, key=lambda row: row.admitted_at)
        message = "the device is out of memory: run fewer replies at once, or lower --context"
        self._finish(row, FinishReason.ERROR, message, keep=False)

    def _conclude(self, row: Row, outcome: Outcome, timing: Timing, rows: int) -> None:
        if outcome.broken:
            self._target.cache.clear(row.slot)
            message = f"{self._model.name} computed something that is not a number: try another --dtype"
            self._finish(row, FinishReason.ERROR, message, keep=False)
            return
        added, pieces, reason = commit(row, outcome, self._model.eos_ids, self._target.context)
        self._drafting.observe(row, added)
        row.outbox.put(
            record(
                row,
                outcome,
                added,
                pieces,
                at=self._clock(),
                draft_s=timing.draft,
                verify_s=timing.verify,
                rest_s=self._rest(timing),
                rows=rows,
            )
        )
        row.rounds += 1
        if reason:
            self._finish(row, reason)

    def _drop_drafter(self, row: Row, error: Exception) -> None:
        text = f"the {row.drafter} drafter failed ({error}): this reply goes on without drafts"
        row.outbox.put(Notice(row.request.request_id, text, self._clock()))
        self._drafting.give_up(row)

    def _finish(self, row: Row, reason: FinishReason, message: str = "", *, keep: bool = True) -> None:
        self._drafting.release(row)
        self._scheduler.retire(row, keep=keep)
        row.outbox.put(Finished(row.request.request_id, reason, row.text.tail(), message, self._clock()))
