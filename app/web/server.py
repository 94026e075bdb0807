"""The web server: textual-serve with an offline page and access control."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from textual_serve.server import Server

from specchat.app.sanitize import is_this_machine

TITLE = "specchat"
COOKIE = "specchat"


class WebServer(Server):
    """Runs one app for each open page.

    Args:
        command: the shell command of the app.
        key: the key that visitors must give once, as ?key=…; None allows this machine only.
        on_start: called when the server listens.
    """

    def __init__(self, command: str, key: str | None, on_start: Callable[[], None]) -> None:
        super().__init__(command, title=TITLE, templates_path=Path(__file__).parent / "templates")
        self._key = key
        self._on_start = on_start

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
        return app


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
