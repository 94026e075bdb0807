"""Commands that other threads send to the engine thread, and their answers, where one is awaited."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from specchat.engine.errors import EngineError
from specchat.engine.events import Clock, Finished, FinishReason, Outbox
from specchat.engine.request import Message, Request, Tool


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate a reply; its events go to `outbox`. `at` is the time of submission on the engine's clock."""

    request: Request
    outbox: Outbox
    at: float
    lane: int = 0
    """Lane to run in, for an engine with lanes (`engine.lanes.engine`)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request within one round; tokens already emitted stay."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Adjust:
    """Change drafter and γ of a request from the next round on. The distribution of its tokens stays the same."""

    request_id: str
    drafter: str
    gamma: int | None
    """`Request.gamma` from then on."""


@dataclass(frozen=True, slots=True)
class KeepTexts:
    """Write the cache of the latest texts to files, see `Engine.keep_texts`."""

    names: Mapping[str, str]
    result: Future[None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop running rounds until `Step` or `Resume`."""


@dataclass(frozen=True, slots=True)
class Step:
    """Run one more round and stay paused."""


@dataclass(frozen=True, slots=True)
class Resume:
    """End a pause."""


@dataclass(frozen=True, slots=True)
class SetDetail:
    """Set the top-k size of a request's `Detail` from the next round on; 0 sends none."""

    request_id: str
    detail: int


@dataclass(frozen=True, slots=True)
class Count:
    """Count the prompt tokens of these messages (`events.Counted`)."""

    messages: tuple[Message, ...]
    key: str = ""
    """Copied to the answer."""
    tools: tuple[Tool, ...] = ()
    """Tools that are part of the prompt."""


@dataclass(frozen=True, slots=True)
class ShowCache:
    """Report what the cache holds (`events.CacheUse`)."""


@dataclass(frozen=True, slots=True)
class Borrow:
    """Run other work with the loaded models, one step between two rounds."""

    work: Callable[[Any, int], Generator[None, None, Any]]
    """Generator function: arguments are the `worker.assembly.Assembly` and a reserved cache slot."""
    result: Future[Any]
    """Receives the return value or an `EngineError`; cancelling it ends the work."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread."""


Command = Submit | Cancel | Adjust | Pause | Step | Resume | SetDetail | Count | ShowCache | KeepTexts | Borrow | Close


_Result = TypeVar("_Result")


class OpenRequests:
    """Passes commands that need an answer to the engine's thread, and answers them itself once that has ended.

    All methods may be called from any thread.

    Args:
        passed_on: the commands of the engine's thread.
        clock: the time scale of events.
    """

    def __init__(self, passed_on: queue.SimpleQueue[Command], clock: Clock) -> None:
        self.end_reason: str | None = None
        """Why the engine has ended, as a sentence; None while it runs."""
        self._commands, self._clock = passed_on, clock
        self._lock = threading.Lock()
        self._open: dict[tuple[int, str], Submit] = {}
        """Requests that have not ended, by lane and id; guarded by `_lock`."""
        self._cancelled: list[Submit] = []
        """Requests that have been cancelled and have not ended: their ids can be used again; guarded by `_lock`."""
        self._awaited: set[Future[Any]] = set()
        """Results of other work that is running or waiting."""

    def add(self, submitted: Submit) -> None:
        """Queue a request; end it at once if the engine has ended.

        Raises:
            EngineError: a request of this id is still open.
        """
        key = submitted.lane, submitted.request.request_id
        with self._lock:
            if key in self._open:
                raise EngineError(f"request {key[1]!r} has not ended yet: give each request a unique id")
            if self.end_reason is None:
                self._open[key] = submitted
                self._commands.put(submitted)
                return
        self._refuse(submitted, self.end_reason)

    def end(self, lane: int, request_id: str) -> None:
        """Make a request's id available again, just before its `Finished` event."""
        key = lane, request_id
        with self._lock:
            for place, each in enumerate(self._cancelled):
                if (each.lane, each.request.request_id) == key:
                    del self._cancelled[place]
                    return
            self._open.pop(key, None)

    def cancel(self, request_id: str) -> None:
        """End a request within one round."""
        with self._lock:
            for key in [key for key in self._open if key[1] == request_id]:
                self._cancelled.append(self._open.pop(key))
            self._commands.put(Cancel(request_id))

    def ask(self, command: Callable[[Future[_Result]], Command]) -> Future[_Result]:
        """Queue a command whose result is awaited; the result is an `EngineError` if the engine ends."""
        result: Future[_Result] = Future()
        with self._lock:
            if self.end_reason is None:
                self._awaited.add(result)
                self._commands.put(command(result))
            else:
                result.set_exception(EngineError(self.end_reason))
        result.add_done_callback(self._awaited.discard)
        return result

    def refuse_more(self, reason: str) -> None:
        """Refuse all later requests with this reason: the engine ends."""
        with self._lock:
            self.end_reason = reason

    def fail_rest(self, reason: str) -> None:
        """End everything that has no answer yet with this reason."""
        with self._lock:  # a request may be cancelled at this moment
            left = [*self._cancelled, *self._open.values()]
            self._cancelled.clear()
            self._open.clear()
        for submitted in left:
            self._refuse(submitted, reason)
        for result in list(self._awaited):
            with suppress(InvalidStateError):  # was just cancelled
                result.set_exception(EngineError(reason))

    def _refuse(self, submitted: Submit, reason: str) -> None:
        finished = Finished(submitted.request.request_id, FinishReason.ERROR, "", reason, self._clock())
        submitted.outbox.put(finished)
