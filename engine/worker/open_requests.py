"""Open requests: those that wait for a slot and those that run, what is asked of them, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specchat.engine.commands import Adjust, Submit
from specchat.engine.decoding.planner import Planner
from specchat.engine.errors import EngineError, first_line
from specchat.engine.events import Finished, FinishReason
from specchat.engine.request import AUTO
from specchat.engine.sequence.scheduler import Scheduler
from specchat.engine.sequence.sequence import SequenceState


class OpenRequests:
    """All requests that have not ended.

    Args:
        scheduler: holds them.
        planner: told of rows that end or draft otherwise.
        most: how many may wait.
        clock: seconds since the engine started.
        on_end: called with the id of each request before it is told that it has ended.
    """

    def __init__(
        self,
        scheduler: Scheduler[Submit],
        planner: Planner,
        most: int,
        clock: Callable[[], float],
        on_end: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._planner = planner
        self._most = most
        self._clock = clock
        self._on_end = on_end

    def enqueue(self, submitted: Submit) -> None:
        """Let a request wait; it is refused where too many do."""
        if len(self._scheduler.waiting) < self._most:
            self._scheduler.waiting.append(submitted)
            return
        message = f"{self._most} requests are waiting already: try again when some have finished"
        self.refuse(submitted, FinishReason.ERROR, message)

    def cancel(self, request_id: str) -> None:
        """End a request that somebody no longer wants."""
        for row in self._scheduler.rows:
            if row.request.request_id == request_id:
                self.finish(row, FinishReason.CANCELLED)
        for waiting in [w for w in self._scheduler.waiting if w.request.request_id == request_id]:
            self._scheduler.waiting.remove(waiting)
            self.refuse(waiting, FinishReason.CANCELLED, "")

    def adjust(self, wanted: Adjust) -> None:
        """Let a request draft otherwise from its next round on."""
        drafter, gamma = wanted.drafter, wanted.gamma
        for row in self._scheduler.rows:
            if row.request.request_id == wanted.request_id and drafter in (AUTO, *self._planner.drafters.by_name):
                self._planner.change(row, drafter, gamma)
        waiting = self._scheduler.waiting
        for number, other in enumerate(waiting):
            if other.request.request_id == wanted.request_id:
                waiting[number] = replace(other, request=replace(other.request, drafter=drafter, gamma=gamma))

    def set_detail(self, request_id: str, detail: int) -> None:
        """Let a request's rounds carry as much detail from now on."""
        for row in self._scheduler.rows:
            if row.request.request_id == request_id:
                row.request = replace(row.request, detail=detail)
        for place, waiting in enumerate(self._scheduler.waiting):
            if waiting.request.request_id == request_id:
                request = replace(waiting.request, detail=detail)
                self._scheduler.waiting[place] = replace(waiting, request=request)

    def refuse(self, submitted: Submit, reason: FinishReason, message: str) -> None:
        """End a request that has no slot."""
        self._on_end(submitted.request.request_id)
        submitted.outbox.put(Finished(submitted.request.request_id, reason, "", message, self._clock()))

    def finish(self, row: SequenceState, reason: FinishReason, message: str = "", *, keep: bool = True) -> None:
        """End a request that runs; `keep` says whether what is cached of it may serve others."""
        self._planner.release(row)
        self._scheduler.retire(row, keep=keep)
        try:
            tail = row.text.tail()
        except Exception as error:  # the tokenizer's: the request ends all the same
            tail, reason, message = "", FinishReason.ERROR, message or sentence(error)
        self._on_end(row.request.request_id)
        row.outbox.put(Finished(row.request.request_id, reason, tail, message, self._clock()))

    def end_all(self, reason: FinishReason, message: str) -> None:
        """End everything."""
        for row in self._scheduler.rows:
            self.finish(row, reason, message)
        while self._scheduler.waiting:
            self.refuse(self._scheduler.waiting.popleft(), reason, message)


def sentence(error: Exception) -> str:
    """What a request that fails is told."""
    if isinstance(error, EngineError):
        return str(error)
    return f"this request failed on an internal error ({type(error).__name__}: {first_line(error)}): ask otherwise"
