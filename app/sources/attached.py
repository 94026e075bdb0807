"""A server somewhere else as the engine: its records come with the chunks of its streams, or are made of them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specchat.app.sources.servers.connection import LOST, Connection, chunks, complaint, words
from specchat.app.sources.servers.protocol import check, count, turns
from specchat.app.sources.servers.server import Call, Reader, Server
from specchat.engine import (
    Admitted,
    Counted,
    Died,
    EngineError,
    Event,
    Finished,
    FinishReason,
    Loading,
    Message,
    Outbox,
    Request,
    Round,
    left_out,
    without,
)


class AttachedEngine:
    """The engine behind a server. Of a `specchat serve` all is known, timed by the server's clock; of others what they
    say (`app.sources.servers`), timed by the stream.

    Commands go in as to `specchat.engine.Engine`, and events come out of outboxes; no method waits for the server.

    Args:
        url: of the server, with or without /v1.
        key: its key, if it has one.
        model: one of its models; None takes the one that it has loaded, or lists first.

    Raises:
        EngineError: it is no address.
    """

    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        self._connection = Connection(url, key)
        self.url = self._connection.url
        self.outbox = Outbox()
        self._model = model
        self._server: Server | None = None
        self._meeting = threading.Lock()
        self._begun = time.monotonic()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        self._paused = False
        self._steps = 0
        self._held: list[Event] = []
        """What has come and is not given yet: the rounds of a pause."""

    def start(self) -> None:
        """Ask the server who it is."""
        threading.Thread(target=self._meet, name="attach", daemon=True).start()

    def submit(self, request: Request, outbox: Outbox | None = None) -> None:
        """Ask for a reply.

        Raises:
            EngineError: the protocol cannot carry the request, or one of its id has not ended.
        """
        request.check_prompt()
        check(request)
        with self._lock:
            if request.request_id in self._streams:
                raise EngineError(f"request {request.request_id!r} has not ended yet: give each request its own id")
            stream = _Stream(request.request_id, outbox or self.outbox)
            self._streams[request.request_id] = stream
        threading.Thread(target=self._answer, args=(stream, request), name="reply", daemon=True).start()

    def examine(self, request: Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse: the protocol has no words for it.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"{self.url} cannot be asked what comes behind these tokens: examine with a model of your own"
        )

    def cancel(self, request_id: str) -> None:
        """Leave, which ends the reply at the server within a round; one that has not begun ends here at once.

        Unknown ids are ignored.
        """
        with self._lock:
            stream = self._streams.get(request_id)
        if stream is not None and not stream.leave():
            self._end(stream, Finished(request_id, FinishReason.CANCELLED, "", "", stream.at))

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:  # noqa: ARG002
        """Refuse: a reply at a server drafts as it was asked to.

        Raises:
            EngineError: always.
        """
        raise EngineError("a reply at a server drafts as it began: the change counts from the next reply on")

    def set_detail(self, request_id: str, detail: int) -> None:
        """Does nothing: a reply at a server has the detail it was asked for."""

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:
        """Ask how many tokens these messages take as a prompt; nothing is said if the server cannot tell."""
        threading.Thread(target=self._count, args=(messages, key), name="count", daemon=True).start()

    def pause(self) -> None:
        """Hold back what comes; the server goes on."""
        self._paused, self._steps = True, 0

    def step(self) -> None:
        """While paused: give one more round."""
        self._steps += self._paused

    def resume(self) -> None:
        """Give what was held back, and what comes."""
        self._paused = False

    def drain(self) -> list[Event]:
        """What has come since the last call; while paused, what was stepped to."""
        self._held += self.outbox.drain()
        count = len(self._held)
        if self._paused:
            rounds = [place for place, event in enumerate(self._held, start=1) if isinstance(event, Round)]
            count = rounds[min(self._steps, len(rounds)) - 1] if self._steps and rounds else 0
            self._steps = 0
        given, self._held = self._held[:count], self._held[count:]
        return given

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """End all replies."""
        for request_id in list(self._streams):
            self.cancel(request_id)
        self._connection.close()

    def _meet(self) -> None:
        self.outbox.put(Loading("attach", f"asking {self.url}", None, 0.0))
        try:
            ready = self._met().ready
        except EngineError as error:
            self.outbox.put(Died(str(error), 0.0))
        else:
            self.outbox.put(ready)

    def _met(self) -> Server:
        """The server, which is asked who it is once.

        Raises:
            EngineError: it cannot be reached, or is of no use.
        """
        with self._meeting:
            if self._server is None:
                self._server = self._connection.meet(self._model)
            return self._server

    def _count(self, messages: tuple[Message, ...], key: str) -> None:
        with suppress(EngineError):
            self.outbox.put(Counted(self._length(messages), 0.0, key))

    def _length(self, messages: tuple[Message, ...]) -> int:
        """Tokens of these messages as a prompt.

        Raises:
            EngineError: the server cannot tell, or refuses; it then refuses the reply too, and that is said.
        """
        tokens = count(self._connection.ask("/tokenize", {"messages": turns(messages)}), "count")
        if tokens is None:
            raise EngineError(f"{self.url} does not count tokens")
        return tokens

    def _left_out(self, request: Request, context: int) -> range:
        """What the server is not told, as it would not fit; it refuses by itself what cannot be counted."""
        if context:
            with suppress(EngineError):
                return left_out(request, self._length, 0, context)
        return range(0)

    def _clock(self) -> float:
        return time.monotonic() - self._begun

    def _answer(self, stream: _Stream, request: Request) -> None:
        """Ask for one reply and read it to its end, on a thread of its own. What has come of it is kept."""
        reader: Reader | None = None
        message = f"{self.url} ended the reply before it was complete: ask again"
        try:
            server = self._met()
            reader = server.reader(stream.request_id, self._clock)
            gone = self._left_out(request, server.ready.context)
            told = replace(request, messages=without(request.messages, gone))
            self._read(stream, server.call(told, self._connection.ask), reader, gone)
        except EngineError as error:
            message = str(error)
        except LOST as error:
            message = f"{self.url} was lost in mid-reply ({words(error)}): ask again"
        for event in reader.close() if reader is not None else ():
            stream.put(event)
        finished = reader.finished if reader is not None else None
        if finished is None:
            reason = FinishReason.CANCELLED if stream.left else FinishReason.ERROR
            finished = Finished(stream.request_id, reason, "", "" if stream.left else message, stream.at)
        self._end(stream, finished)

    def _end(self, stream: _Stream, finished: Finished) -> None:
        """Say that a reply has ended, which frees its id."""
        with self._lock:
            if self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]
        stream.put(finished)

    def _read(self, stream: _Stream, call: Call, reader: Reader, gone: range) -> None:
        """Read the chunks of one reply that the messages at the places of `gone` were left out of.

        Raises:
            EngineError: the server refuses, or sends something else.
        """
        if stream.left:
            return
        extensions = {"trace": stream.trace}
        with self._connection.replies.stream("POST", call.path, json=call.body, extensions=extensions) as reply:
            stream.begin()
            if reply.status_code != 200:
                raise EngineError(complaint(reply.read(), reply.status_code))
            for chunk in chunks(reply):
                for event in reader.read(chunk):
                    stream.put(replace(event, left_out=tuple(gone)) if isinstance(event, Admitted) else event)


class _Stream:
    """A reply that is being read."""

    def __init__(self, request_id: str, outbox: Outbox) -> None:
        self.request_id = request_id
        self.outbox = outbox
        self.at = 0.0
        """Time of the last event."""
        self.left = False
        self._begun = False
        self._ended = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """Hand over one event; none follows the end."""
        with self._lock:
            if not self._ended:
                self.at, self._ended = event.at, isinstance(event, Finished)
                self.outbox.put(event)

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """What httpcore reports of the request: its connection, as soon as there is one."""
        if name.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                self._cut_if_left()

    def begin(self) -> None:
        """The server has begun to answer."""
        with self._lock:
            self._begun = True

    def leave(self) -> bool:
        """Read no more; whether the server had begun to answer, so that what has come of it is still to be read."""
        with self._lock:
            self.left = True
            self._cut_if_left()
            return self._begun

    def _cut_if_left(self) -> None:
        if self.left and self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for more
