"""Answers to calls, streamed or as one object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specchat.app.server.calls import Call, Calls
from specchat.app.server.formats import DONE, Choice, Delta, Format
from specchat.app.server.protocol import ApiError, Body
from specchat.engine import Event, Finished, FinishReason, Request, Round

GONE = 499
"""Status of a call whose client has disconnected; it is not sent."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answer:
    """ASGI application that answers one call. If the client goes away, its requests are cancelled.

    Args:
        calls: submits requests to the engine.
        requests: one for each choice.
        form: writes the objects.
        body: the body of the call.
        top: length of the lists of likely tokens; None for no log-probabilities.
    """

    def __init__(self, calls: Calls, requests: Sequence[Request], form: Format, body: Body, top: int | None) -> None:
        self._calls = calls
        self._requests = requests
        self._form = form
        self._body = body
        self._each = body.n or 1
        """Number of choices of a prompt."""
        self._choices = {request.request_id: Choice(number, top) for number, request in enumerate(requests)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a failure after the first byte is the last chunk of the stream.

        Raises:
            ApiError: nothing has been sent yet.
        """
        call = self._calls.begin(self._requests)
        async with _watched(call, receive, self._calls):
            if self._body.stream:
                await self._send_stream(call, send)
            else:
                await Response(await self._whole(call), media_type="application/json")(scope, receive, send)

    async def _send_stream(self, call: Call, send: Send) -> None:
        started = False
        while not call.over:
            body = bytearray()
            try:
                for choice, delta in self._merged(await call.events()):
                    body += self._form.chunk(choice, delta)
            except ApiError as error:
                if not started:
                    raise
                if error.status == GONE:
                    return
                body += b"data: " + bytes(error.response().body) + b"\n\n"
                await send({"type": "http.response.body", "body": bytes(body), "more_body": False})
                return
            last = call.over  # more may come while this is sent
            if last:
                if self._body.stream_options and self._body.stream_options.include_usage:
                    body += self._form.usage_chunk(list(self._choices.values()), self._each)
                body += DONE
            if not body:
                continue
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                started = True
            await send({"type": "http.response.body", "body": bytes(body), "more_body": not last})

    def _merged(self, events: Sequence[tuple[str, Event]]) -> Iterator[tuple[Choice, Delta]]:
        """The parts that events add. Rounds of a choice are joined, unless chunks carry records.

        Raises:
            ApiError: a request has failed.
        """
        rounds: dict[Choice, Delta] = {}  # not yielded yet
        try:
            for request_id, event in events:
                choice, delta = self._added(request_id, event)
                if self._form.joins and isinstance(delta.event, Round):
                    rounds[choice] = rounds[choice].then(delta) if choice in rounds else delta
                    continue
                if choice in rounds:
                    yield choice, rounds.pop(choice)
                yield choice, delta
        except ApiError:
            yield from rounds.items()
            raise
        yield from rounds.items()

    async def _whole(self, call: Call) -> bytes:
        deltas: dict[str, list[Delta]] = {request.request_id: [] for request in self._requests}
        while not call.over:
            for request_id, event in await call.events():
                deltas[request_id].append(self._added(request_id, event)[1])
        return self._form.whole(list(self._choices.values()), list(deltas.values()), self._each)

    def _added(self, request_id: str, event: Event) -> tuple[Choice, Delta]:
        """The part that an event adds to its choice.

        Raises:
            ApiError: the request has failed.
        """
        choice = self._choices[request_id]
        if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            self._calls.check_alive()
            raise ApiError(500 if choice.admitted else 400, event.message)
        return choice, choice.add(event)


@asynccontextmanager
async def _watched(call: Call, receive: Receive, calls: Calls) -> AsyncIterator[None]:
    """Fail the call if the client disconnects; at the end, cancel its open requests."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        call.fail(ApiError(GONE, "the client has disconnected"))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        calls.end(call)
