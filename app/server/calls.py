"""Calls: HTTP requests while the engine answers them, and how its events reach them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specchat.app.server.errors import ApiError
from specchat.app.server.figures import Figures
from specchat.app.server.loop_outbox import LoopOutbox
from specchat.engine import Died, Engine, EngineError, Event, Finished, Notice, Request


class Call:
    """One HTTP request: the engine's requests it is made of, and their events. Used on the loop only."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.open = {request.request_id for request in requests}
        """Requests that have not ended."""
        self.failure: ApiError | None = None
        """Why no events are waited for any more: the client is gone, or time is up."""
        self._events: list[tuple[str, Event]] = []
        self._waiting: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether all requests have ended, and `events` has given all that came of them."""
        return not self.open and not self._events

    def add(self, request_id: str, event: Event) -> None:
        """Take one event of one of its requests."""
        if isinstance(event, Finished):
            self.open.discard(request_id)
        self._events.append((request_id, event))
        self._wake()

    def fail(self, failure: ApiError) -> None:
        """Let nobody wait any longer."""
        self.failure = self.failure or failure
        self._wake()

    async def events(self) -> list[tuple[str, Event]]:
        """The events since the last time, each with its request's id; waits for at least one.

        Raises:
            ApiError: the call has failed.
        """
        if not self._events and self.failure is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.failure:
            raise self.failure
        events, self._events = self._events, []
        return events

    def _wake(self) -> None:
        """Let who waits for events go on."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Calls:
    """All calls of a server on its engine. Used on the loop only.

    Args:
        engine: loaded.
        loop: the server's.
        queue: requests that may wait for a slot.
        seconds: the longest time a call may take.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, queue: int, seconds: float) -> None:
        self._engine = engine
        self._loop = loop
        self._room = engine.wait_ready().slots + queue
        self._queue = queue
        self._seconds = seconds
        self._outbox = LoopOutbox(loop, self._deliver)
        self._of: dict[str, Call] = {}
        """The call of each open request that a client waits for."""
        self._timers: dict[Call, asyncio.TimerHandle] = {}
        self.figures = Figures()
        self.death: str | None = None
        """Why the engine has ended, once it has."""

    def begin(self, requests: Sequence[Request]) -> Call:
        """Hand requests to the engine. Every call must be ended with `end`.

        Raises:
            ApiError: too many requests wait already, a request is refused, or the engine has ended.
        """
        self.check_alive()
        if self.figures.open + len(requests) > self._room:
            message = f"{self._queue} requests may wait and there is no room for {len(requests)} more: try again soon"
            raise ApiError(429, message, code="queue_full")
        call = Call(requests)
        try:
            for request in requests:
                self._of[request.request_id] = call
                self._engine.submit(request, self._outbox)
                self.figures.submitted(request.request_id)
        except EngineError as error:
            self.end(call)
            raise ApiError(400, str(error)) from None
        message = f"the reply took longer than {self._seconds:g} seconds: ask for fewer tokens, or raise --timeout"
        late = ApiError(504, message, code="timeout")
        self._timers[call] = self._loop.call_later(self._seconds, self._give_up, call, late)
        return call

    def end(self, call: Call) -> None:
        """The client has all it gets: what is still open is cancelled, which frees its slots within a round."""
        if timer := self._timers.pop(call, None):
            timer.cancel()
        self._cancel(call)

    def check_alive(self) -> list[str]:
        """Read what the engine says about itself; the sentences of its notices.

        Raises:
            ApiError: it has ended.
        """
        said = self._engine.drain()
        self.death = next((event.message for event in said if isinstance(event, Died)), self.death)
        if self.death is not None:
            raise ApiError(503, f"nothing is served any more: {self.death}", code="engine_dead")
        return [event.text for event in said if isinstance(event, Notice)]

    def _give_up(self, call: Call, why: ApiError) -> None:
        """Fail a call and free its slots, also where its client has stopped reading, who is told if it goes on."""
        call.fail(why)
        self._cancel(call)

    def _cancel(self, call: Call) -> None:
        for request in call.requests:
            if self._of.pop(request.request_id, None) is not None and request.request_id in call.open:
                self._engine.cancel(request.request_id)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            request_id = getattr(event, "request_id", None)
            self.figures.add(event)
            if request_id is not None and (call := self._of.get(request_id)):
                call.add(request_id, event)
                if isinstance(event, Finished):
                    del self._of[request_id]
