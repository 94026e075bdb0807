"""The HTTP server: a socket, uvicorn, signals, and the engine's last words."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.app.server.application import Limits, Service, make_application
from specchat.app.server.errors import ApiError
from specchat.app.settings.settings import Settings
from specchat.engine import Engine

HEADERS_S = 20.0
"""Seconds that a client may take to send the head of a request."""
KEEP_ALIVE_S = 60
_LOOK_S = 1.0
"""Between two looks at what the engine says about itself."""


class HttpProtocol(H11Protocol):
    """uvicorn's protocol, which also closes connections whose request does not get as far as its body."""

    _too_slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        else:
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: say so as everything else is said, and hang up."""
        body = bytes(ApiError(400, f"{msg.rstrip('.')}: send HTTP/1.1", code="invalid_http").response().body)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        headers.append((b"content-length", str(len(body)).encode()))
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_request(self) -> None:
        if self._too_slow is None:
            self._too_slow = self.loop.call_later(HEADERS_S, self.timeout_keep_alive_handler)

    def _stop_expecting(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None


class Server(uvicorn.Server):
    """uvicorn's server, which ends this program in order: the first signal drains, the second does not wait."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal has come."""
        self.force_exit = self.should_exit
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, not yet listening.

    Raises:
        UsageError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
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
    drain: float,
    on_start: Callable[[], None],
) -> str | None:
    """Serve until a signal comes or the engine ends; why it ended, if it did.

    Args:
        engine: loaded.
        settings: what holds where a request says nothing.
        bound: where to listen.
        limits: how much is let in.
        key: what callers must give.
        origins: web pages that may ask.
        drain: seconds that running replies have to finish after a signal.
        on_start: called when clients are served.
    """

    async def serve() -> str | None:
        service = Service(engine, settings, limits, asyncio.get_running_loop())
        config = uvicorn.Config(
            make_application(service, key, origins),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(drain)),
            backlog=2048,
        )
        server = Server(config)
        watch = asyncio.create_task(_watch(service, server, on_start))
        try:
            await server.serve(sockets=[bound])
        finally:
            watch.cancel()
            service.close()
        return service.calls.death

    return asyncio.run(serve())


async def _watch(service: Service, server: Server, on_start: Callable[[], None]) -> None:
    """Say when clients are served, and what the engine says; end the server if the engine has ended."""
    while not server.started:
        await asyncio.sleep(0.01)
    on_start()
    with contextlib.suppress(ApiError):
        while True:
            for text in service.calls.check_alive():
                print(f"specchat: {escape_controls(text)}", file=sys.stderr)
            await asyncio.sleep(_LOOK_S)
    server.should_exit = True
