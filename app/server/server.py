"""The HTTP server: a socket, uvicorn with limits on the head of a request, signals, and the messages of the engine."""

import asyncio
import contextlib
import math
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.loops.auto import auto_loop_factory
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.app.server.answer import HALF_CLOSED
from specchat.app.server.application import Limits, Service, make_application
from specchat.app.server.errors import ApiError
from specchat.app.settings.settings import Settings
from specchat.engine import Engine

HEADERS_S = 20.0
"""Seconds that a client may take to send the head of a request."""
HEAD_BYTES = 1 << 16
"""Longest head."""
_FRAMING = (b"content-length", b"transfer-encoding")


class HttpProtocol(HttpToolsProtocol):
    """Protocol of one connection, which is closed if the head of a request is invalid or late."""

    _too_slow: asyncio.TimerHandle | None = None
    _data: bytes = b""
    """The data being parsed."""
    _head: int = 0
    """Bytes received of an incomplete head."""
    _in_head: bool = True
    _half_closed: asyncio.Event
    """Set once the client sends nothing more."""
    _repeats_head: bool = False
    """Whether a head is parsed a second time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._half_closed = asyncio.Event()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a request."""
        self._data = data
        super().data_received(data)
        self._data = b""
        self._head = self._head + len(data) if self._in_head else 0
        if self._head > HEAD_BYTES:
            self.send_400_response(f"the head of the request is longer than {HEAD_BYTES} bytes")
        elif self._answered:
            self._expect_request()
        else:
            self._stop_expecting()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if not self._repeats_head:
            self._in_head = True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        if not self._repeats_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if not self._repeats_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        if not self._repeats_head:
            super().on_headers_complete()
            self._in_head = False
            self.scope["state"][HALF_CLOSED] = self._half_closed

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: close the connection, unless it may wait for the answer to a request."""
        if self._answered or self.cycle.more_body:
            return False
        (self.pipeline[0][0] if self.pipeline else self.cycle).keep_alive = False
        self._half_closed.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP with an error of the API, and close the connection."""
        if self.transport.is_closing():
            return
        own = not self.pipeline and not self._answered and self.cycle.more_body and not self.cycle.response_started
        if self._answered or own:  # otherwise the error would become part of another answer
            body = bytes(ApiError(400, f"{msg.rstrip('.')}: send HTTP/1.1", code="invalid_http").response().body)
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        if own:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Answer a client that offers another protocol (some offer HTTP/2 with every request) in HTTP/1.1.

        The parser stops after the head, so a new parser reads the body. Called while the parser's exception is
        handled, which contains the end of the head.
        """
        error = sys.exc_info()[1]
        if not isinstance(error, httptools.HttpParserUpgrade):
            return
        rest = self._data[error.args[0] :]
        framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        self.cycle.more_body, self._repeats_head = True, True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        self._repeats_head = False
        self._data = rest
        super().data_received(rest)

    @property
    def _answered(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        if self._too_slow is None:
            self._too_slow = self.loop.call_later(HEADERS_S, self.timeout_keep_alive_handler)

    def _stop_expecting(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None


_LONGEST_DRAIN_S = 1e6
"""`--drain` is limited to this: timers take no infinity."""
_PLAIN: dict[str, Any] = {
    "ws": "none", "lifespan": "off", "backlog": 2048, "proxy_headers": False, "server_header": False,
    "log_config": None, "log_level": "critical", "access_log": False, "timeout_keep_alive": 60,
}  # fmt: skip
_LOOK_S = 1.0
"""Interval of reading the engine's messages."""


class Server(uvicorn.Server):
    """uvicorn's server: the first signal lets running replies finish, the second ends it at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal."""
        self.force_exit = self.should_exit
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; connections wait until the server accepts them.

    Raises:
        UsageError: the address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()  # two programs that do not listen could both bind
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{host}:{port} cannot be served ({reason}): choose another --host or --port") from None
    return made


def run(
    engine: Engine,
    settings: Settings,
    bound: socket.socket,
    limits: Limits,
    *,
    key: str | None,
    origins: list[str],
    hosts: list[str],
    drain: float,
    on_start: Callable[[], None],
) -> str | None:
    """Serve until a signal comes or the engine dies. Returns why it died, or None.

    Args:
        engine: loaded.
        settings: defaults for requests.
        bound: the listening socket.
        limits: limits on requests.
        key: the key that clients must send, if any.
        origins: web pages that may send requests.
        hosts: names under which clients may reach the server (`guards.Guard`).
        drain: seconds that running replies have to finish after a signal.
        on_start: called when the server accepts requests.
    """

    async def serve() -> str | None:
        service = Service(engine, settings, limits, asyncio.get_running_loop())
        served, graceful = make_application(service, key, origins, hosts), math.ceil(min(_LONGEST_DRAIN_S, drain))
        config = uvicorn.Config(served, http=HttpProtocol, timeout_graceful_shutdown=graceful, **_PLAIN)
        server = Server(config)
        watch = asyncio.create_task(_watch(service, server, on_start))
        try:
            await server.serve(sockets=[bound])
        finally:
            watch.cancel()
            service.close()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        return service.calls.death

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(serve())


async def _watch(service: Service, server: Server, on_start: Callable[[], None]) -> None:
    """Call `on_start`, print the engine's notices, and end the server when the engine dies."""
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        on_start()
        with contextlib.suppress(ApiError):
            while True:
                for text in service.calls.check_alive():
                    print(f"specchat: {escape_controls(text)}", file=sys.stderr)
                await asyncio.sleep(_LOOK_S)
    finally:
        server.should_exit = True
