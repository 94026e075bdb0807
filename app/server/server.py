"""The HTTP server: a socket, uvicorn, signals, and the messages of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.app.server.application import Limits, Service, make_application
from specchat.app.server.errors import ApiError
from specchat.app.server.http_protocol import HttpProtocol
from specchat.app.settings.settings import Settings
from specchat.engine import Engine

KEEP_ALIVE_S = 60
_LOOK_S = 1.0
"""Interval of reading the engine's messages."""


class Server(uvicorn.Server):
    """uvicorn's server: the first signal lets running replies finish, the second ends it at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal."""
        self.force_exit = self.should_exit
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, not yet listening.

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
    """Serve until a signal comes or the engine dies. Returns why it died, or None.

    Args:
        engine: loaded.
        settings: defaults for requests.
        bound: the bound socket.
        limits: limits on requests.
        key: the key that clients must send, if any.
        origins: web pages that may send requests.
        drain: seconds that running replies have to finish after a signal.
        on_start: called when the server accepts requests.
    """

    async def serve() -> str | None:
        service = Service(engine, settings, limits, asyncio.get_running_loop())
        config = uvicorn.Config(
            make_application(service, key, origins),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
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

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(serve())


async def _watch(service: Service, server: Server, on_start: Callable[[], None]) -> None:
    """Call `on_start`, print the engine's notices, and end the server when the engine dies."""
    while not server.started:
        await asyncio.sleep(0.01)
    on_start()
    with contextlib.suppress(ApiError):
        while True:
            for text in service.calls.check_alive():
                print(f"specchat: {escape_controls(text)}", file=sys.stderr)
            await asyncio.sleep(_LOOK_S)
    server.should_exit = True
