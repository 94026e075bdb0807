"""The web server: textual-serve with an offline page and access control."""

import asyncio
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from specchat.app.sanitize import is_this_machine

MOST_COLUMNS, MOST_ROWS = 1000, 500
"""Largest window: an app draws every cell of it."""
_LEAVE_S = 5.0
"""Seconds that an app has to end by itself once its page is gone."""
_HEADERS = {"content-security-policy": "frame-ancestors 'none'", "x-frame-options": "DENY"}
"""Sent with every answer: a page that shows this one inside itself could lead visitors to type into it."""
TITLE = "specchat"
COOKIE = "specchat"


class PageApp(AppService):
    """The app of one page. Its window is of a sensible size, and it ends with the page."""

    async def start(self, width: int, height: int) -> None:
        """Start the app."""
        await super().start(*_window(width, height))

    async def set_terminal_size(self, width: int, height: int) -> None:
        """The page has another size."""
        await super().set_terminal_size(*_window(width, height))

    async def stop(self) -> None:
        """End the app, by force if it does not end in time."""
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                await super().stop()
                await process.communicate()  # its last output, which it could not write to the page
        except TimeoutError:
            process.kill()
            await process.wait()


def _window(width: int, height: int) -> tuple[int, int]:
    return max(1, min(width, MOST_COLUMNS)), max(1, min(height, MOST_ROWS))


class WebServer(Server):
    """Runs one app for each open page.

    Args:
        command: the shell command of the app.
        key: the key that visitors must give once, as ?key=…; None allows this machine only.
        on_start: called when the server listens.
    """

    def __init__(self, command: str, key: str | None, on_start: Callable[[], None]) -> None:
        super().__init__(f"exec {command}", title=TITLE, templates_path=Path(__file__).parent / "templates")
        self._key, self._on_start = key, on_start

    async def on_startup(self, app: web.Application) -> None:  # noqa: ARG002
        """Called when the server listens."""
        self._on_start()

    def run(self, bound: socket.socket) -> None:
        """Serve at a bound socket until a signal comes."""
        logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
        web.run_app(self._guarded(), sock=bound, print=None, access_log=None, loop=asyncio.new_event_loop())

    async def _guarded(self) -> web.Application:
        app = await self._make_app()
        app.middlewares.append(guard(self._key))
        app.on_response_prepare.append(_add_headers)
        return app

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run the app of one page."""
        page = web.WebSocketResponse(heartbeat=15)
        await page.prepare(request)

        async def close() -> None:
            await page.close()

        page_to: dict[str, Any] = {"write_bytes": page.send_bytes, "write_str": page.send_str, "close": close}
        app = PageApp(self.command, download_manager=self.download_manager, **page_to)
        try:
            await app.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
            await self._process_messages(page, app)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError):  # a message of no page of ours
            await page.close()
        finally:
            await app.stop()
        return page


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def guard(key: str | None) -> Middleware:
    """Middleware that requires the key or, without one, a visitor on this machine.

    Browsers let any page connect to 127.0.0.1, with the page's origin in a header. If a page's host name was rebound
    to 127.0.0.1, that name is in the Host header.
    """
    token = None if key is None else hashlib.sha256(f"specchat web {key}".encode()).hexdigest()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return web.Response(status=403, text="specchat: other web pages have no access\n")
        if token is None:
            if not is_this_machine(urlsplit(f"//{request.host}").hostname or ""):
                return web.Response(status=403, text="specchat: without a key, only this machine has access\n")
            return await handler(request)
        as_typed = unquote(request.rel_url.raw_query_string.removeprefix("key="))  # a query has spaces for its + signs
        given = (request.query.get("key", ""), as_typed)
        if any(hmac.compare_digest(each.encode(), (key or "").encode()) for each in given):
            entered = web.HTTPFound(request.path)
            entered.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=request.secure)
            return entered
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
            return await handler(request)
        return web.Response(status=401, text="specchat: the key is missing or wrong: open this address with ?key=KEY\n")

    return check
