"""The engine thread's work: take commands, admit, prefill a chunk, run a round, say what happened.

This is where torch comes in; `engine.engine` imports it inside the thread.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import torch

from specchat.engine.commands import Adjust, Cancel, Close, Command, Count, Pause, Resume, SetDetail, Step, Submit
from specchat.engine.config import EngineConfig
from specchat.engine.errors import EngineError, first_line
from specchat.engine.events import Admitted, Counted, Finished, FinishReason, Given, Loading, Notice, Prefilled, Ready
from specchat.engine.outbox import Outbox
from specchat.engine.request import AUTO, Request
from specchat.engine.runner.to_device import to_device
from specchat.engine.sampling.rng import fresh_seed
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.fit import fit
from specchat.engine.sequence.prompt import encode, encode_reply
from specchat.engine.sequence.scheduler import Scheduler
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.sequence.thinking import find_markers, switch_of, words_of
from specchat.engine.speculation.planner import Planner
from specchat.engine.speculation.round import Timing, run_round
from specchat.engine.speculation.verify.outcome import Outcome
from specchat.engine.worker.assembly import (
    OUT_OF_MEMORY,
    UNREPEATABLE,
    Assemble,
    Assembly,
    free_memory,
    hindrances,
    warm_up,
)
from specchat.engine.worker.commit import commit, record
from specchat.engine.worker.plain_passes import PlainPasses, time_warm_passes


class Worker:
    """Everything the thread owns. `run` returns when it is told to close.

    Args:
        config: models, device and room.
        commands: what the other threads ask for.
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started.
        on_ready: called once, when requests are served.
        on_end: called with the id of each request before it is told that it has ended.
    """

    times_plain_passes: ClassVar[bool] = True
    """Whether plain passes are timed beside rounds that draft; lanes are compared with each other instead."""

    def __init__(
        self,
        config: EngineConfig,
        commands: queue.SimpleQueue[Command],
        outbox: Outbox,
        clock: Callable[[], float],
        on_ready: Callable[[Ready, Assembly], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._config = config
        self._commands = commands
        self._outbox = outbox
        self._clock = clock
        self._on_ready = on_ready
        self._on_end = on_end
        self._scheduler: Scheduler[Submit] = Scheduler(0)
        self._closed = False
        self._paused = False
        self._steps = 0
        """Rounds still to be run while paused."""
        self._told: set[str] = set()
        self._failing = False
        """Whether the last pass failed and took its request with it: the next that fails is the engine's fault."""

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
        self._end_all(FinishReason.CANCELLED, "")

    def fail(self, message: str) -> None:
        """Finish every open request with an error: the thread is about to end."""
        self._end_all(FinishReason.ERROR, message)

    def _end_all(self, reason: FinishReason, message: str) -> None:
        for row in self._scheduler.rows:
            self._finish(row, reason, message)
        while self._scheduler.waiting:
            self._refuse(self._scheduler.waiting.popleft(), reason, message)

    # ---- loading

    def _load(self, assemble: Assemble) -> Assembly:
        made = assemble(self._config, self._say_loading)
        while not self._warms_up(made):
            smaller = made.smaller
            del made  # its memory is needed for the next
            if smaller is None:
                raise EngineError(OUT_OF_MEMORY)
            free_memory()
            made = smaller()
        self._model, self._target, self._verifier = made.model, made.target, made.verifier
        self._plain_passes = PlainPasses(made.target, made.verifier) if self.times_plain_passes else None
        self._planner = Planner(made.drafters, made.target, self._drop_drafter)
        self._scheduler = Scheduler(made.target.cache.slots)
        device, template = made.target.device, made.model.tokenizer.chat_template
        self._thinking = find_markers(made.model.tokenizer)
        self._on_ready(
            Ready(
                target=made.model.name,
                draft=next((part.name for part in (made.draft, made.head) if part), None),
                drafters=tuple(made.drafters),
                device=device.type,
                device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
                dtype=made.model.format,
                context=made.target.context,
                slots=made.target.cache.slots,
                weight_bytes=made.weight_bytes,
                cache_bytes=made.cache_bytes + made.graph_bytes,
                at=self._clock(),
                plain_s=time_warm_passes(made.target),
                thinking_switch=switch_of(template) is not None,
                template_words=words_of(template),
            ),
            made,
        )
        for text in made.notices:
            self._outbox.put(Notice(None, text, self._clock()))
        self._made = made
        self._tell_hindrances()
        return made

    def _warms_up(self, made: Assembly) -> bool:
        """Warm up; whether there was the memory for it."""
        on_gpu = made.target.device.type == "cuda"
        self._say_loading("warm-up", "warming up, compiling what is not compiled yet" if on_gpu else "warming up", None)
        try:
            warm_up(made)
        except torch.OutOfMemoryError:
            return False
        return True

    def _tell_hindrances(self) -> None:
        """Say what keeps passes from being fast, once each: a shape may be met late."""
        for text in hindrances(self._made):
            self._tell(text)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
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
            case Count():
                self._count(command)
            case Close():
                self._closed = True

    def _count(self, wanted: Count) -> None:
        with suppress(Exception):  # a template is a program of the model's: a request with it says what it raises
            tokens = len(encode(Request("count", wanted.messages), self._model.tokenizer))
            self._outbox.put(Counted(tokens, self._clock(), wanted.key))

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
            if row.request.request_id == wanted.request_id and drafter in (AUTO, *self._planner.drafters):
                self._planner.change(row, drafter, gamma)
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
            except Exception as error:  # a tokenizer, a template: whatever it raises is this request's alone
                self._refuse(submitted, FinishReason.ERROR, _sentence(error))

    def _start(self, submitted: Submit) -> None:
        request = submitted.request
        drafter = self._planner.named(request.drafter, request.gamma)
        request.check_vocabulary(self._model.vocab_size)
        given = encode_reply(request, self._model.tokenizer)
        fitted = fit(request, self._model.tokenizer, len(given), self._target.context)
        prompt = [*fitted.ids, *given]
        if len(prompt) >= self._target.context:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens and the context holds {self._target.context}: "
                "shorten it, start a new chat or raise --context"
            )
        now, thinking = self._clock(), self._thinking
        place = self._scheduler.place(prompt)
        if place.source != place.slot and place.length:
            self._target.cache.copy(place.source, place.slot, place.length)
        row = SequenceState(
            request=request,
            outbox=submitted.outbox,
            slot=place.slot,
            tokens=prompt,
            prompt_length=len(prompt),
            cached=place.length,
            seed=fresh_seed() if request.sampling.seed is None else request.sampling.seed,
            text=Detokenizer(self._model.tokenizer, request.stop, thinking.special if thinking else {}),
            drafter=drafter,
            admitted_at=now,
            continued=len(given),
        )
        pieces = row.text.begin(given)
        self._scheduler.admit(row)
        self._planner.admit(row)
        if row.adaptive and request.sampling.greedy and self._made.rounds_by_width:
            self._tell(UNREPEATABLE.format(dtype=self._model.format))
        row.outbox.put(
            Admitted(
                request.request_id,
                len(prompt),
                row.cached,
                now - submitted.at,
                now,
                tuple(Given(token, piece) for token, piece in zip(given, pieces, strict=True)),
                thinking.of_prompt(fitted.ids, self._model.tokenizer) if thinking else None,
                fitted.left_out,
            )
        )

    def _refuse(self, submitted: Submit, reason: FinishReason, message: str) -> None:
        self._on_end(submitted.request.request_id)
        submitted.outbox.put(Finished(submitted.request.request_id, reason, "", message, self._clock()))

    # ---- work

    def _prefill(self) -> None:
        """One chunk, beginning with the prompt that was admitted first; running rows wait for no more than that."""
        unread = sorted((row for row in self._scheduler.rows if not self._is_ready(row)), key=lambda r: r.admitted_at)
        if not unread:
            return
        rows = unread[:1]
        if not (rows[0].prefilled or self._config.exact):  # exact: how a prompt is read may not depend on others
            rows = [row for row in unread if not row.prefilled]
        try:
            self._read(rows)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._blame(*self._one_by_one(rows, error, self._read))

    def _is_ready(self, row: SequenceState) -> bool:
        """Whether target and drafter have read what they need for the row's next round."""
        return row.prefilled and not self._planner.unread(row)

    def _read(self, rows: Sequence[SequenceState]) -> None:
        """One chunk of the first row's prompt and what fits beside it, for the target or, once that has it all, for the
        drafter."""
        if rows[0].prefilled:
            self._planner.read(rows[0])
            return
        started, limit, room = self._clock(), self._config.prefill_chunk, self._target.context
        rows = self._scheduler.read_together(rows, limit, room)
        for row in rows:  # what another slot has read meanwhile
            lent = self._scheduler.lend(row)
            if lent is not None and (length := self._planner.lend(row, lent.source, lent.length)) > row.cached:
                self._target.cache.copy(lent.source, lent.slot, length)
                row.cached = length
        rows = self._scheduler.read_together(rows, limit, room)  # what was lent leaves less to read
        chunks = [row.tokens[row.cached : min(row.cached + limit, len(row.tokens) - 1)] for row in rows]
        lengths = [len(chunk) for chunk in chunks]
        if any(lengths):
            padded = to_device([chunk + [0] * (max(lengths) - len(chunk)) for chunk in chunks], self._target.device)
            slots, starts = [row.slot for row in rows], [row.cached for row in rows]
            tapped = self._target.prefill(padded, slots, starts, lengths)
            self._planner.absorb(rows, tapped, lengths)
        now = self._clock()
        for row, length in zip(rows, lengths, strict=True):
            row.cached += length
            if not row.rounds:  # else a drafter that was changed to had to see it
                size = row.prompt_length
                row.outbox.put(Prefilled(row.request.request_id, row.cached, size, now - started, now))

    def _round(self) -> None:
        rows = [row for row in self._scheduler.rows if self._is_ready(row)]
        if not rows:
            return
        self._steps -= self._steps > 0
        self._bring_together(rows)
        rows.sort(key=lambda row: row.slot)
        try:
            self._verify(rows)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._blame(*self._one_by_one(rows, error, self._verify))

    @torch.inference_mode()
    def _bring_together(self, rows: Sequence[SequenceState]) -> None:
        """Move rows into neighbouring slots, where passes copy the caches of others.

        Static passes take the first slots, so on a GPU the rows go there.
        """
        if not any(runner.gathers for runner in (self._target, self._made.draft_runner) if runner):
            return
        for one, other in self._scheduler.moves(rows, to_first=self._target.device.type == "cuda"):
            length = self._scheduler.exchange(one, other)
            self._target.cache.exchange(one, other, length)
            self._planner.exchange(one, other)

    def _verify(self, rows: Sequence[SequenceState]) -> None:
        """Run one round for these rows."""
        plain_s = self._plain_passes.measure(rows) if self._plain_passes else 0.0
        plan, outcomes, timing = run_round(self._target, rows, self._planner, self._verifier)
        rest_s = self._rest(timing)
        self._planner.learn(rows, plan, outcomes, timing.draft, timing.verify, rest_s)
        if self._plain_passes:
            plain = not any(plan.proposal.lengths)
            self._plain_passes.learn(len(rows), plain, timing.verify, timing.draft + timing.verify + rest_s)
        self._failing = False
        self._tell_hindrances()
        for row, outcome in zip(rows, outcomes, strict=True):
            try:
                self._conclude(row, outcome, timing, len(rows), plain_s)
            except Exception as error:  # its text, its record: nothing that the others share
                self._finish(row, FinishReason.ERROR, _sentence(error), keep=False)

    @staticmethod
    def _one_by_one(
        rows: Sequence[SequenceState], error: Exception, work: Callable[[Sequence[SequenceState]], None]
    ) -> tuple[list[SequenceState], list[Exception]]:
        """The rows of a pass that failed, each in a pass of its own: those that fail again, and how."""
        if len(rows) == 1:
            return list(rows), [error]
        failed: list[SequenceState] = []
        errors: list[Exception] = []
        for row in rows:
            try:
                work([row])
            except torch.OutOfMemoryError:
                raise
            except Exception as own:
                failed.append(row)
                errors.append(own)
        if len(failed) == len(rows):
            raise error
        return failed, errors

    def _blame(self, rows: Sequence[SequenceState], errors: Sequence[Exception]) -> None:
        """End the rows that fail by themselves; where nothing has got through since the last one, the engine dies."""
        for row, error in zip(rows, errors, strict=True):
            if self._failing:
                raise error
            self._failing = len(rows) == 1
            self._finish(row, FinishReason.ERROR, _sentence(error), keep=False)

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

    def _conclude(self, row: SequenceState, outcome: Outcome, timing: Timing, rows: int, plain_s: float) -> None:
        if outcome.broken:
            self._target.cache.clear(row.slot)
            message = f"{self._model.name} computed something that is not a number: try another --dtype"
            self._finish(row, FinishReason.ERROR, message, keep=False)
            return
        added, pieces, reason = commit(row, outcome, self._model.eos_ids, self._target.context)
        self._planner.observe(row, added)
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
                plain_s=plain_s,
            )
        )
        row.rounds += 1
        if reason:
            self._finish(row, reason)

    def _drop_drafter(self, row: SequenceState, error: Exception) -> None:
        text = f"the {row.drafter} drafter failed ({error}): this reply goes on without drafts"
        row.outbox.put(Notice(row.request.request_id, text, self._clock()))
        self._planner.give_up(row)

    def _finish(self, row: SequenceState, reason: FinishReason, message: str = "", *, keep: bool = True) -> None:
        self._planner.release(row)
        self._scheduler.retire(row, keep=keep)
        try:
            tail = row.text.tail()
        except Exception as error:  # the tokenizer's: the request ends all the same
            tail, reason, message = "", FinishReason.ERROR, message or _sentence(error)
        self._on_end(row.request.request_id)
        row.outbox.put(Finished(row.request.request_id, reason, tail, message, self._clock()))


def _sentence(error: Exception) -> str:
    """What a request that fails is told."""
    if isinstance(error, EngineError):
        return str(error)
    return f"this request failed on an internal error ({type(error).__name__}: {first_line(error)}): ask otherwise"
