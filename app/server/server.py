"""The HTTP server: a socket, uvicorn, signals, and the engine's last words."""

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
"""Between two looks at what the engine says about itself."""


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
