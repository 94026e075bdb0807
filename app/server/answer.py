"""Answers to calls, streamed or as one object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass
from itertools import zip_longest

from starlette.types import Receive, Scope, Send

from specchat.app.server.calls import Call, Calls, disconnected, unwritten
from specchat.app.server.choice import Choice, Delta, Echo
from specchat.app.server.errors import GONE, ApiError
from specchat.app.server.formats import Format
from specchat.app.server.protocol import Body
from specchat.engine import Event, Finished, FinishReason, Request, Round

HALF_CLOSED = "half_closed"
"""Key of the state of a request: an event that is set once its client sends nothing more."""
_PROBE_S = 0.2
_WHOLE_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(eq=False)
class Answer:
    """ASGI application that answers one call. If the client goes away, its requests are cancelled."""

    _calls: Calls
    """Submits requests to the engine."""
    _requests: Sequence[Request]
    """One for each choice."""
    _form: Format
    """Writes the objects."""
    _body: Body
    """The body of the call."""
    top: InitVar[int | None]
    """Length of the lists of likely tokens; None for no log-probabilities."""
    echoes: InitVar[Sequence[Echo]] = ()
    """The prompt of each request, if replies begin with it."""

    def __post_init__(self, top: int | None, echoes: Sequence[Echo]) -> None:
        self._each = self._body.n or 1
        """Number of choices of a prompt."""
        choices = (Choice(number, top, echo) for number, (_, echo) in enumerate(zip_longest(self._requests, echoes)))
        self._choices = {each.request_id: choice for each, choice in zip(self._requests, choices, strict=True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a failure after the first byte is the end of the answer.

        Raises:
            ApiError: nothing has been sent yet.
        """
        call = unwritten(self._requests) if self._body.max_tokens == 0 else self._calls.begin(self._requests)
        sending = _Sending(send, self._body.stream or False)
        async with _watched(call, receive, self._calls), sending.probing(scope):
            if self._body.stream:
                await self._send_stream(call, sending)
            else:
                await self._send_whole(call, sending)

    async def _send_whole(self, call: Call, sending: _Sending) -> None:
        try:
            await sending.send(await self._whole(call), last=True)
        except ApiError as error:
            await self._send_failure(error, sending)

    async def _send_failure(self, error: ApiError, sending: _Sending, before: bytes = b"") -> None:
        if not sending.started:
            raise error
        if error.status != GONE:
            body = bytes(error.response().body)
            await sending.send(before + b"data: " + body + b"\n\n" if self._body.stream else body, last=True)

    async def _send_stream(self, call: Call, sending: _Sending) -> None:
        while not call.over:
            body = bytearray()
            try:
                for choice, delta in self._merged(await call.events()):
                    body += self._form.chunk(choice, delta)
            except ApiError as error:
                await self._send_failure(error, sending, bytes(body))
                return
            last = call.over  # more may come while this is sent
            if last:
                counts = bool(self._body.stream_options and self._body.stream_options.include_usage)
                body += self._form.end(list(self._choices.values()), self._each, counts=counts)
            if body:
                await sending.send(bytes(body), last=last)

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
            ApiError: the request has failed, before its first token.
        """
        choice = self._choices[request_id]
        if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            self._calls.check_alive()
            if not choice.tokens:
                raise ApiError(500 if choice.admitted else 400, event.message)
        return choice, choice.add(event)


class _Sending:
    """Sends the parts of an answer, the head with the first one.

    A client that sends nothing more may wait for its answer, or be gone: only what is sent to it shows which. Until
    something else is sent, it gets comments of a stream, or spaces, which may precede JSON.

    Args:
        send: of ASGI.
        stream: whether the answer is a stream of events.
    """

    def __init__(self, send: Send, stream: bool) -> None:
        self.started = False
        self._send = send
        self._headers = _STREAM_HEADERS if stream else _WHOLE_HEADERS
        self._filler = b":\n\n" if stream else b" "
        self._lock = asyncio.Lock()
        self._sent = False
        """Whether a part was sent."""

    async def send(self, part: bytes, *, last: bool = False) -> None:
        """Send a part."""
        self._sent = True
        async with self._lock:
            await self._write(part, last=last)

    async def _write(self, part: bytes, *, last: bool = False) -> None:
        if not self.started:
            self.started = True
            length = [(b"content-length", b"%d" % len(part))] if last and self._headers is _WHOLE_HEADERS else []
            await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers, *length]})
        await self._send({"type": "http.response.body", "body": part, "more_body": not last})

    async def _probe(self, half_closed: asyncio.Event) -> None:
        await half_closed.wait()
        while not self._sent:
            async with self._lock:
                if not self._sent:
                    await self._write(self._filler)
            await asyncio.sleep(_PROBE_S)

    @asynccontextmanager
    async def probing(self, scope: Scope) -> AsyncIterator[None]:
        """Context manager: once the client sends nothing more, find out whether it is gone."""
        half_closed = scope.get("state", {}).get(HALF_CLOSED)
        known = half_closed is not None and scope["http_version"] == "1.1"  # earlier ones have no parts
        prober = asyncio.create_task(self._probe(half_closed)) if known else None
        try:
            yield
        finally:
            if prober is not None:
                prober.cancel()


@asynccontextmanager
async def _watched(call: Call, receive: Receive, calls: Calls) -> AsyncIterator[None]:
    """Fail the call if the client disconnects; at the end, cancel its open requests."""

    async def watch() -> None:
        await disconnected(receive)
        call.fail(ApiError(GONE, "the client has disconnected"))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        calls.end(call)
