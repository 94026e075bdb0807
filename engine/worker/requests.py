"""Open requests, waiting for a slot or running: how they start, change, end and fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch

from specchat.engine.commands import Adjust, Submit
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.planner import Planner
from specchat.engine.device.device import is_device_error, is_shortage
from specchat.engine.errors import EngineError, first_line
from specchat.engine.events import Admitted, Finished, FinishReason, Given
from specchat.engine.request import AUTO, STOP, Request
from specchat.engine.sampling.rng import fresh_seed
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import (
    FittedPrompt,
    check_conversation,
    check_length,
    check_tokens,
    encode_reply,
    fit,
    stops_of,
)
from specchat.engine.sequence.reply_formats import find_format
from specchat.engine.sequence.row_constraint import Constraints
from specchat.engine.sequence.sequence import Repetition, Scheduler, SequenceState
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.notices import UNREPEATABLE, Notices
from specchat.engine.worker.records import Emission


def sentence(error: BaseException) -> str:
    """Message for a request that failed."""
    if isinstance(error, EngineError):
        return str(error)
    cause = f"{type(error).__name__}: {first_line(error)}"
    return f"this request failed on an internal error ({cause}): rephrase the prompt and send it again"


class Faults:
    """Isolates rows for which passes fail, and ends their requests.

    Args:
        finish: ends the request of a row, with a message about the error.
    """

    def __init__(self, finish: Callable[[SequenceState, str], None]) -> None:
        self._finish = finish
        self._failing = False
        """Whether a single row failed and no round succeeded since: another failure is the engine's."""

    def run(self, work: Callable[[Sequence[SequenceState]], None], rows: Sequence[SequenceState]) -> None:
        """Run a pass for these rows; if it fails, for each row alone. Rows that fail again end.

        Raises:
            torch.OutOfMemoryError: no row is at fault.
            EngineError: the GPU has failed.
            Exception: all rows failed, or no round succeeded since the last failure.
        """
        try:
            work(rows)
        except Exception as error:
            if is_shortage(error):
                raise torch.OutOfMemoryError(first_line(error)) from error
            if is_device_error(error):
                message = f"the GPU has failed ({first_line(error)}): start again, or with --device cpu"
                raise EngineError(message) from error
            self._blame(_one_by_one(rows, error, work))

    def passed(self) -> None:
        """A round has succeeded."""
        self._failing = False

    def _blame(self, failed: Sequence[tuple[SequenceState, Exception]]) -> None:
        for row, error in failed:
            if self._failing:
                raise error
            self._failing = len(failed) == 1
            self._finish(row, sentence(error))


def _one_by_one(
    rows: Sequence[SequenceState], error: Exception, work: Callable[[Sequence[SequenceState]], None]
) -> list[tuple[SequenceState, Exception]]:
    """Run each row of a failed pass alone; return the rows that fail again, with their errors."""
    if len(rows) == 1:
        return [(rows[0], error)]
    failed: list[tuple[SequenceState, Exception]] = []
    for row in rows:
        try:
            work([row])
        except torch.OutOfMemoryError:
            raise
        except Exception as own:
            failed.append((row, own))
    if len(failed) == len(rows):
        raise error
    return failed


@dataclass
class OpenRequests:
    """Requests that wait for a slot, and requests that run.

    Args:
        made: what the engine runs with.
        scheduler: of the slots; holds the requests.
        planner: informed of rows that start, change their drafter or end.
        emission: of the rows' records, which precede their end.
        notices: for what the user should know.
        config: how many may wait, and the seeds of requests without one.
        clock: seconds since the engine started.
        on_end: called with the id of each request before it is told that it has ended.
    """

    made: Assembly
    scheduler: Scheduler
    planner: Planner
    emission: Emission
    notices: Notices
    config: EngineConfig
    clock: Callable[[], float]
    on_end: Callable[[str], None]

    def __post_init__(self) -> None:
        self._seeds = iter(fresh_seed, None) if self.config.seed is None else count(self.config.seed)
        made = self.made
        self._format = find_format(made.model.tokenizer)
        self._constraints = Constraints(made.model.tokenizer, made.target.vocabulary, made.model.eos_ids)
        self._latest: tuple[Request, FittedPrompt, list[int]] | None = None
        """The request that was encoded last."""

    def enqueue(self, submitted: Submit) -> None:
        """Queue a request; refuse it if the queue is full."""
        if len(self.scheduler.waiting) < self.config.queue:
            self.scheduler.waiting.append(submitted)
            return
        message = f"{self.config.queue} requests are waiting already: try again when some have finished"
        self.refuse(submitted, FinishReason.ERROR, message)

    def admit(self) -> None:
        """Give free slots to waiting requests, first come, first served."""
        self._resume()
        while self.scheduler.waiting and self.scheduler.free_slot is not None and not self.scheduler.suspended:
            submitted = self.scheduler.waiting.popleft()
            try:
                admitted = self._start(submitted)
            except Exception as error:  # a tokenizer, a template: whatever it raises is this request's alone
                self.refuse(submitted, FinishReason.ERROR, sentence(error))
            else:
                if not admitted:
                    self.scheduler.waiting.appendleft(submitted)
                    return

    def _resume(self) -> None:
        """Let rows that wait for cache blocks continue, the oldest first."""
        for row in self.scheduler.suspended:
            if not self.scheduler.resume(row):
                return
            start(row, self.scheduler, self.planner)

    def with_room(self, rows: Sequence[SequenceState]) -> list[SequenceState]:
        """Assign the cache blocks that the next round may write; returns the rows that have them.

        If there are too few, the youngest rows lose theirs, and their texts are read again once there are enough.
        """
        for row in sorted(rows, key=lambda row: row.admitted_at):
            while not row.waits and not self.scheduler.extend(row):
                youngest = max((each for each in self.scheduler.rows if not each.waits), key=lambda r: r.admitted_at)
                self.planner.release(youngest)
                self.scheduler.suspend(youngest)
        return [row for row in rows if not row.waits]

    def _start(self, submitted: Submit) -> bool:
        """Start a request in a free slot; False if the cache has no room for it now."""
        request, model, target = submitted.request, self.made.model, self.made.target
        drafter = self.planner.resolve(request.drafter, request.gamma)
        request.check_vocabulary(model.vocab_size)
        fitted, given = self._encoded(request)
        prompt, constraint = [*fitted.ids, *given], self._constraints.of_request(request, fitted.ids, given)
        now = self.clock()
        if (place := self.scheduler.place(prompt)) is None:
            return False
        slot, cached = place
        row = SequenceState(
            request=request,
            outbox=submitted.outbox,
            slot=slot,
            tokens=prompt,
            prompt_length=len(prompt),
            cached=cached,
            seed=next(self._seeds) if request.sampling.seed is None else request.sampling.seed,
            text=self._text(request, fitted.ids, continues=not given),
            drafter=drafter,
            admitted_at=now,
            continued=len(given),
            repetition=Repetition() if request.stop_repeats else None,
            constraint=constraint,
            steady=request.sampling.seed is not None
            and not request.sampling.greedy
            and not (self.made.same_bits and request.sampling.lossless),
        )
        try:
            target.admit(row)
            of_chat = request.when_full == STOP and len(request.messages) > 1
            check_length(len(prompt), target.limit(row), of_chat=of_chat)
            pieces = row.text.begin(given)
        except Exception:
            self.scheduler.pool.clear(slot)
            raise
        self.scheduler.admit(row)
        start(row, self.scheduler, self.planner)
        if row.adaptive and request.sampling.greedy and self.made.rounds_by_width:
            self.notices.tell([UNREPEATABLE.format(dtype=model.format)])
        row.outbox.put(
            Admitted(
                request.request_id,
                row.prompt_length,
                row.cached,
                now - submitted.at,
                now,
                tuple(Given(token, *piece) for token, piece in zip(given, pieces, strict=True)),
                left_out=fitted.left_out,
                sampling=request.sampling,
                constraint=request.constraint,
            )
        )
        return True

    def _text(self, request: Request, prompt: Sequence[int], *, continues: bool) -> Detokenizer:
        """The detokenizer of a reply to this prompt, which `continues` it where it is no conversation."""
        tokenizer, form = self.made.model.tokenizer, self._format
        stops, after = stops_of(request, tokenizer), prompt if continues and not request.messages else ()
        if request.tools and (calls := find_call_format(tokenizer)):
            separating = calls.parser(prompt, tokenizer, request.tools, several=request.parallel_calls)
            return Detokenizer(tokenizer, stops, separating, calls.special, after)
        if form is None:
            return Detokenizer(tokenizer, stops, after=after)
        parser = None if request.raw or request.prompt is not None else form.parser(prompt, tokenizer)
        return Detokenizer(tokenizer, stops, parser, form.special, after)

    def _encoded(self, request: Request) -> tuple[FittedPrompt, list[int]]:
        """A request's prompt, and the tokens that its reply begins with; kept while the request waits for room."""
        if self._latest is None or self._latest[0] is not request:
            model = self.made.model
            given = encode_reply(request, model.tokenizer)
            check_conversation(request, model.name, conversations=model.start is None)
            fitted = fit(request, model.tokenizer, len(given), self.made.target.context)
            check_tokens((*fitted.ids, *given), model.tokenizer, model.vocab_size)
            self._latest = request, fitted, given
        return self._latest[1:]

    def cancel(self, request_id: str) -> None:
        """End a request, waiting or running."""
        for row in self.scheduler.rows:
            if row.request.request_id == request_id:
                self.finish(row, FinishReason.CANCELLED)
        for waiting in [w for w in self.scheduler.waiting if w.request.request_id == request_id]:
            self.scheduler.waiting.remove(waiting)
            self.refuse(waiting, FinishReason.CANCELLED, "")

    def adjust(self, wanted: Adjust) -> None:
        """Change a request's drafter and γ from its next round on."""
        drafter, gamma = wanted.drafter, wanted.gamma
        for row in self.scheduler.rows:
            if row.request.request_id == wanted.request_id and drafter in (AUTO, *self.planner.drafters.by_name):
                self.planner.change(row, drafter, gamma)
        self._change_waiting(wanted.request_id, drafter=drafter, gamma=gamma)

    def set_detail(self, request_id: str, detail: int) -> None:
        """Change the detail of a request's rounds from the next one on."""
        for row in self.scheduler.rows:
            if row.request.request_id == request_id:
                row.request = replace(row.request, detail=detail)
        self._change_waiting(request_id, detail=detail)

    def _change_waiting(self, request_id: str, **fields: Any) -> None:
        """Change fields of a request that waits."""
        for place, waiting in enumerate(self.scheduler.waiting):
            if waiting.request.request_id == request_id:
                self.scheduler.waiting[place] = replace(waiting, request=replace(waiting.request, **fields))

    def refuse(self, submitted: Submit, reason: FinishReason, message: str) -> None:
        """End a request that has no slot."""
        self.on_end(submitted.request.request_id)
        submitted.outbox.put(Finished(submitted.request.request_id, reason, "", message, self.clock()))

    def finish(self, row: SequenceState, reason: FinishReason, message: str = "", *, keep: bool = True) -> None:
        """End a request that runs; `keep` says whether its cached tokens may be reused."""
        self.emission.finish()
        if row.failed is not None:
            reason, message = FinishReason.ERROR, message or sentence(row.failed)
        self.planner.release(row)
        self.scheduler.retire(row, keep=keep and row.failed is None)
        try:
            tail = row.text.tail()
            if row.text.stopped and reason not in (FinishReason.CANCELLED, FinishReason.ERROR):
                reason = FinishReason.STOP  # a stop string was completed by the text that was held back
        except Exception as error:  # the tokenizer's: the request ends all the same
            tail, reason, message = "", FinishReason.ERROR, message or sentence(error)
        self.on_end(row.request.request_id)
        thinking, calls = bool(tail) and row.text.thinking, row.text.take_calls()[0]
        row.outbox.put(Finished(row.request.request_id, reason, tail, message, self.clock(), thinking, calls))

    def fail(self, row: SequenceState, message: str) -> None:
        """End a request that runs by an error; its cached tokens are not reused."""
        self.finish(row, FinishReason.ERROR, message, keep=False)

    def end_all(self, reason: FinishReason, message: str) -> None:
        """End everything."""
        for row in self.scheduler.rows:
            self.finish(row, reason, message)
        while self.scheduler.waiting:
            self.refuse(self.scheduler.waiting.popleft(), reason, message)


def start(row: SequenceState, scheduler: Scheduler, planner: Planner) -> None:
    """Let a row continue after the prefix of its text that its blocks hold and that target and drafter know."""
    scheduler.attach(row)
    planner.admit(row)
