"""A server as the engine: its chunks contain records, or records are made of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Self

from specchat import engine
from specchat.app.sources.servers.connection import LOST, SILENCE_S, Connection, Socket, chunks, complaint, words
from specchat.app.sources.servers.messages import offered, turns
from specchat.app.sources.servers.protocol import Call, Reader, Server, check, count
from specchat.app.sources.source import Source

UNUSABLE = "sent something that cannot be used: it may be of another version"
_LONGEST_TOKEN = 256
"""Characters per token that a reply may have on average."""


class AttachedEngine(Source):
    """A server with the interface of `specchat.engine.Engine`. No method waits for the server.

    A `specchat serve` sends its records, timed by its own clock. The records of other servers are made of what they
    report (`app.sources.servers`), timed by the stream.

    Args:
        url: address of the server, with or without /v1.
        key: its key, if it has one.
        model: one of its models; None for the loaded one, or the first.

    Raises:
        EngineError: the URL is not an address.
    """

    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        self._connection = Connection(url, key)
        self.url = self._connection.url
        self.outbox = engine.Outbox()
        self._model = model
        self._server: Server | None = None
        self._server_lock = threading.Lock()
        self._created = time.monotonic()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        self._paused = False
        self._steps = 0
        self._held: list[engine.Event] = []
        """Events that are held back during a pause."""

    def start(self) -> None:
        """Connect to the server."""
        threading.Thread(target=self._connect, name="attach", daemon=True).start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: engine.Request, outbox: engine.Outbox | None = None) -> None:
        """Request a reply.

        Raises:
            EngineError: the protocol does not support the request, or the id is in use.
        """
        request.check_prompt()
        check(request)
        with self._lock:
            if request.request_id in self._streams:
                raise engine.EngineError(
                    f"request {request.request_id!r} has not ended yet: give each request its own id"
                )
            stream = _Stream(request.request_id, outbox or self.outbox)
            self._streams[request.request_id] = stream
        threading.Thread(target=self._answer, args=(stream, request), name="reply", daemon=True).start()

    def examine(self, request: engine.Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse: the protocol does not support it.

        Raises:
            EngineError: always.
        """
        raise engine.EngineError(f"{self.url} cannot examine tokens: use a model on this machine")

    def cancel(self, request_id: str) -> None:
        """Cut the connection, which ends the reply at the server within a round. Unknown ids are ignored.

        A reply that the server has not begun to answer ends here immediately.
        """
        with self._lock:
            stream = self._streams.get(request_id)
        if stream is not None and not stream.leave():
            self._end(stream, engine.Finished(request_id, engine.FinishReason.CANCELLED, "", "", stream.at))

    def count(self, messages: tuple[engine.Message, ...], key: str = "", tools: tuple[engine.Tool, ...] = ()) -> None:
        """Report with a `Counted` how many tokens these messages take as a prompt, if the server can tell."""
        threading.Thread(target=self._count, args=(messages, key, tools), name="count", daemon=True).start()

    def pause(self) -> None:
        """Hold events back; the server continues."""
        self._paused, self._steps = True, 0

    def step(self) -> None:
        """While paused: release one more round."""
        self._steps += self._paused

    def resume(self) -> None:
        """Release the events that were held back."""
        self._paused = False

    def drain(self) -> list[engine.Event]:
        """Events since the last call; while paused, up to the released round."""
        self._held += self.outbox.drain()
        count = len(self._held)
        if self._paused:
            rounds = [place for place, event in enumerate(self._held, start=1) if isinstance(event, engine.Round)]
            count = rounds[min(self._steps, len(rounds)) - 1] if self._steps and rounds else 0
            self._steps = 0
        released, self._held = self._held[:count], self._held[count:]
        return released

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """End all replies."""
        for request_id in list(self._streams):
            self.cancel(request_id)
        self._connection.close()

    def _connect(self) -> None:
        self.outbox.put(engine.Loading("attach", f"asking {self.url}", None, 0.0))
        try:
            self.outbox.put(self._known_server().ready)
        except engine.EngineError as error:
            self.outbox.put(engine.Died(str(error), 0.0))
        except Exception as error:  # an adapter did not expect what a server sent
            self.outbox.put(engine.Died(f"{self.url} {UNUSABLE} ({type(error).__name__})", 0.0))

    def _known_server(self) -> Server:
        """The adapter of the server, which is recognised at the first call.

        Raises:
            EngineError: it cannot be reached or used.
        """
        with self._server_lock:
            if self._server is None:
                self._server = self._connection.find_server(self._model)
            return self._server

    def _count(self, messages: tuple[engine.Message, ...], key: str, tools: tuple[engine.Tool, ...]) -> None:
        with suppress(engine.EngineError):
            self.outbox.put(engine.Counted(self._length(messages, tools), 0.0, key))

    def _length(self, messages: tuple[engine.Message, ...], tools: tuple[engine.Tool, ...]) -> int:
        """Tokens of these messages as a prompt, with the tools if the server counts them.

        Raises:
            EngineError: the server cannot tell, or refuses; then it refuses the reply too, with a message.
        """
        tokens = count(self._connection.ask("/tokenize", {"messages": turns(messages)} | offered(tools)), "count")
        if tokens is None:
            raise engine.EngineError(f"{self.url} does not count tokens")
        return tokens

    def _left_out(self, request: engine.Request, context: int) -> range:
        """Indices of messages to leave out, as they do not fit; empty if the server cannot count tokens."""
        if context:
            with suppress(engine.EngineError):
                return engine.left_out(request, partial(self._length, tools=request.tools), 0, context)
        return range(0)

    def _clock(self) -> float:
        return time.monotonic() - self._created

    def _answer(self, stream: _Stream, request: engine.Request) -> None:
        """Request one reply and read it to its end, on its own thread. A part that has arrived is kept."""
        reader: Reader | None = None
        message = f"{self.url} ended the reply before it was complete: ask again"
        try:
            server = self._known_server()
            reader = server.reader(stream.request_id, self._clock)
            omitted = self._left_out(request, server.ready.context)
            fitting = replace(request, messages=engine.without(request.messages, omitted))
            self._read(stream, server.call(fitting, self._connection.ask), reader, fitting, omitted)
        except engine.EngineError as error:
            message = str(error)
        except LOST as error:
            message = f"{self.url} was lost in mid-reply ({words(error)}): ask again"
        except Exception as error:  # an adapter did not expect what a server sent
            message = f"{self.url} {UNUSABLE} ({type(error).__name__})"
        for event in reader.close() if reader is not None else ():
            stream.put(event)
        finished = reader.finished if reader is not None else None
        if finished is None:
            reason = engine.FinishReason.CANCELLED if stream.left else engine.FinishReason.ERROR
            finished = engine.Finished(stream.request_id, reason, "", "" if stream.left else message, stream.at)
        self._end(stream, finished if reader is None else reader.ended(finished))

    def _end(self, stream: _Stream, finished: engine.Finished) -> None:
        """Emit the end of a reply, and free its id."""
        with self._lock:
            if self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]
        stream.put(finished)

    def _read(self, stream: _Stream, call: Call, reader: Reader, request: engine.Request, omitted: range) -> None:
        """Read the chunks of the reply to a request that leaves out the messages with the indices `omitted`.

        Raises:
            EngineError: the server refuses, or sends something else.
        """
        if stream.left:
            return
        tokens = characters = 0
        with ExitStack() as stack:
            with stream.socket.limited(SILENCE_S):
                reply = stack.enter_context(self._connection.open(call.path, call.body, stream.socket))
            stream.begin()
            if reply.status_code != 200:
                raise engine.EngineError(complaint(self._connection.read(reply), reply.status_code))
            for chunk in chunks(reply, request.max_tokens):
                for event in reader.read(chunk):
                    if isinstance(event, engine.Admitted):
                        event = replace(event, left_out=tuple(omitted), sampling=request.sampling)
                    elif isinstance(event, engine.Round):
                        if tokens >= request.max_tokens or characters > _LONGEST_TOKEN * request.max_tokens:
                            reader.finish(engine.FinishReason.LENGTH)
                            return
                        tokens, characters = tokens + len(event.emitted), characters + len(event.text)
                    stream.put(event)


class _Stream:
    """A reply that is being read."""

    def __init__(self, request_id: str, outbox: engine.Outbox) -> None:
        self.request_id, self.outbox = request_id, outbox
        self.at = 0.0
        """Time of the last event."""
        self.left = False
        self.socket = Socket()
        self._begun = False
        self._ended = False
        self._lock = threading.Lock()

    def put(self, event: engine.Event) -> None:
        """Emit one event, unless the reply has ended."""
        with self._lock:
            if not self._ended:
                self.at, self._ended = event.at, isinstance(event, engine.Finished)
                self.outbox.put(event)

    def begin(self) -> None:
        """The server has begun to answer."""
        with self._lock:
            self._begun = True

    def leave(self) -> bool:
        """Stop reading. Returns whether the server had begun to answer, so that received chunks are still read."""
        with self._lock:
            self.left = True
            self.socket.cut()
            return self._begun
