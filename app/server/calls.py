"""Calls: HTTP requests while the engine answers them, and the delivery of its events on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.types import Receive

from specchat import engine
from specchat.app.server.errors import GONE, ApiError
from specchat.app.server.figures import Figures

CLOSING = "the reply was ended: the server is closing"
GATHER_S = 0.002
"""Time from the first event of a round to its delivery, in which the events of the other rows arrive."""
PACE_S = 1 / 30
"""Shortest time between deliveries, except for the first and last events of replies."""


class Call:
    """One HTTP request: its engine requests and their events. Used on the loop only."""

    def __init__(self, requests: Sequence[engine.Request]) -> None:
        self.requests = tuple(requests)
        self.open = {request.request_id for request in requests}
        """Requests that have not ended."""
        self.failure: ApiError | None = None
        """Why the call has failed: the client has disconnected, or time is up."""
        self._events: list[tuple[str, engine.Event]] = []
        self._news = asyncio.Event()
        """Set while there are events, or the call has failed."""

    @property
    def over(self) -> bool:
        """Whether all requests have ended, and `events` has returned all their events."""
        return not self.open and not self._events

    def add(self, request_id: str, event: engine.Event) -> None:
        """Add one event of a request."""
        if isinstance(event, engine.Finished):
            self.open.discard(request_id)
        self._events.append((request_id, event))
        self._news.set()

    def fail(self, failure: ApiError) -> None:
        """Fail the call, which wakes `events`."""
        self.failure = self.failure or failure
        self._news.set()

    async def events(self) -> list[tuple[str, engine.Event]]:
        """The events since the last call, each with its request's id; waits for at least one.

        Raises:
            ApiError: the call has failed, or the server is closing.
        """
        try:
            await self._news.wait()
        except asyncio.CancelledError:  # by uvicorn, when `--drain` seconds have passed
            raise ApiError(503, CLOSING) from None
        if self.failure:
            raise self.failure
        self._news.clear()
        events, self._events = self._events, []
        return events


def unwritten(requests: Sequence[engine.Request]) -> Call:
    """A call whose replies have ended before their first token."""
    call = Call(requests)
    for each in requests:
        call.add(each.request_id, engine.Admitted(each.request_id, len(each.prompt_ids), 0, 0.0, 0.0))
        call.add(each.request_id, engine.Finished(each.request_id, engine.FinishReason.LENGTH, "", "", 0.0))
    return call


async def disconnected(receive: Receive) -> None:
    """Return once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class LoopOutbox(engine.Outbox):
    """Outbox that delivers events to a function on an event loop, many at a time.

    Each wake-up of the loop evicts the engine's data from the processor's caches, so a round of 64 requests, or
    several short rounds of one request, wake it once.

    Args:
        loop: where `deliver` is called.
        deliver: gets the events, in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[engine.Event]], None]) -> None:
        super().__init__()
        self._loop, self._take = loop, deliver
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        """Whether a delivery is due within `GATHER_S`."""
        self._later = False
        """Whether a delivery is due within `PACE_S`."""

    def put(self, event: engine.Event) -> None:
        """Append one event; wake the loop unless a delivery is due in time."""
        super().put(event)
        if not self._soon and (not self._later or _is_awaited(event)):
            self._soon = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver_in, GATHER_S)

    def _deliver_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._soon = self._later = False  # before the drain, so that later events wake the loop
        events = self.drain()
        if events:
            self._later = True
            self._deliver_in(PACE_S)
            self._take(events)


def _is_awaited(event: engine.Event) -> bool:
    """Whether it is the first or last event of a reply that a client sees."""
    return isinstance(event, engine.Finished) or (isinstance(event, engine.Round) and not event.number)


class Calls:
    """All calls of a server on its engine. Used on the loop only.

    Args:
        source: the engine, loaded.
        loop: the server's.
        queue: requests that may wait for a slot.
        seconds: the longest time a call may take.
    """

    def __init__(self, source: engine.Engine, loop: asyncio.AbstractEventLoop, queue: int, seconds: float) -> None:
        self._engine, self._loop = source, loop
        slots = source.wait_ready().slots
        self._room = slots + queue
        self._queue, self._seconds = queue, seconds
        self._outbox = LoopOutbox(loop, self._deliver)
        self._of: dict[str, Call] = {}
        """Request id to the call of each open request."""
        self._timers: dict[Call, asyncio.TimerHandle] = {}
        self.figures = Figures(slots)
        self._scoring = 0
        """Prompts that are being scored."""
        self.death: str | None = None
        """Why the engine has ended, once it has."""

    def begin(self, requests: Sequence[engine.Request]) -> Call:
        """Submit requests to the engine. Every call must be ended with `end`.

        Raises:
            ApiError: too many requests wait already, a request is refused, or the engine has ended.
        """
        self.check_alive()
        self._check_room(len(requests))
        call = Call(requests)
        try:
            for request in requests:
                self._of[request.request_id] = call
                self._engine.submit(request, self._outbox)
                self.figures.submitted(request.request_id)
        except engine.EngineError as error:
            self.end(call)
            raise ApiError(400, str(error), param=error.field) from None
        self._timers[call] = self._loop.call_later(self._seconds, self._give_up, call, self._late)
        return call

    async def scores(
        self, prompts: Sequence[Sequence[int]], top: int, receive: Receive
    ) -> list[list[engine.TokenScore]]:
        """Scores of prompts, each with its `top` most likely tokens.

        Raises:
            ApiError: as `begin`, or the client disconnects, or it takes too long.
        """
        self.check_alive()
        self._check_room(len(prompts))
        self._scoring += len(prompts)
        asked: list[asyncio.Future[list[engine.TokenScore]]] = []
        gone = asyncio.create_task(disconnected(receive))
        try:
            asked += [asyncio.wrap_future(self._engine.score_prompt(each, top)) for each in prompts]
            scored = asyncio.gather(*asked)
            done, _ = await asyncio.wait((scored, gone), timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if scored not in done:
                raise ApiError(GONE, "the client has disconnected") if done else self._late
            return scored.result()
        except engine.EngineError as error:
            self.check_alive()
            raise ApiError(400, str(error), param=error.field) from None
        except asyncio.CancelledError:  # by uvicorn, when `--drain` seconds have passed
            raise ApiError(503, CLOSING) from None
        finally:
            self._scoring -= len(prompts)
            gone.cancel()
            for each in asked:
                each.cancel()

    def end(self, call: Call) -> None:
        """End a call: open requests are cancelled, which frees their slots within a round."""
        if timer := self._timers.pop(call, None):
            timer.cancel()
        self._cancel(call)

    def check_alive(self) -> list[str]:
        """Read the engine's own events. Returns the texts of its notices.

        Raises:
            ApiError: it has ended.
        """
        said = self._engine.drain()
        self.death = next((event.message for event in said if isinstance(event, engine.Died)), self.death)
        if self.death is not None:
            raise ApiError(503, f"nothing is served any more: {self.death}", code="engine_dead")
        return [event.text for event in said if isinstance(event, engine.Notice)]

    def _check_room(self, more: int) -> None:
        if self.figures.open + self._scoring + more > self._room:
            message = f"{self._queue} requests may wait and there is no room for {more} more: try again soon"
            raise ApiError(429, message, code="queue_full")

    @property
    def _late(self) -> ApiError:
        message = f"the reply took longer than {self._seconds:g} seconds: ask for fewer tokens, or raise --timeout"
        return ApiError(504, message, code="timeout")

    def _give_up(self, call: Call, why: ApiError) -> None:
        """Fail a call and free its slots, even if its client has stopped reading."""
        call.fail(why)
        self._cancel(call)

    def _cancel(self, call: Call) -> None:
        for request in call.requests:
            if self._of.pop(request.request_id, None) is not None and request.request_id in call.open:
                self._engine.cancel(request.request_id)

    def _deliver(self, events: list[engine.Event]) -> None:
        for event in events:
            request_id = getattr(event, "request_id", None)
            self.figures.add(event)
            if request_id is not None and (call := self._of.get(request_id)):
                call.add(request_id, event)
                if isinstance(event, engine.Finished):
                    del self._of[request_id]
