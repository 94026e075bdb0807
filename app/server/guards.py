"""ASGI middleware: which pages, names and keys are let in, and requests that are answered before they have come."""

import asyncio
import hmac
import ipaddress
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specchat.app.server.errors import ApiError

ANY = "*"
_NO_KEY = "/health"
"""Path that needs no key."""
_OWN_ENDINGS = (".localhost", ".local", ".internal")
"""Ends of names that cannot be registered on the internet."""
_REST_BYTES, _REST_S = 32 << 20, 5.0
"""How much of a body is read, and for how long, when its answer is known already."""


class Guard:
    """ASGI middleware that refuses other web pages, and clients without the key.

    Browsers let any page send requests to 127.0.0.1, with the page's origin; other programs send no origin. A page
    whose host name was rebound to 127.0.0.1 sends requests without an origin, with that name as their host.

    Args:
        app: the application.
        key: the key that clients must send, if any.
        origins: web pages that may send requests; "*" for all.
        hosts: names under which clients may reach the server, besides addresses and names of local networks; "*" for
            all.
    """

    def __init__(self, app: ASGIApp, key: str | None, origins: Collection[str], hosts: Collection[str]) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._origins = frozenset(origins)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        answer = self._app if refusal is None else refusal.response()
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        for host in headers.getlist("host"):
            if not self._hosts & {_name(host), ANY} and not is_local(_name(host)):
                message = f"{host!a:.80} is not a name of this server: name it with --allow-host"
                return ApiError(403, message, code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._origins & {origin, ANY}:
            return ApiError(403, f"pages of {origin!a:.80} may not ask: name it with --cors", code="origin_not_allowed")
        if self._key is None or scope["path"] == _NO_KEY:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key):
            return None
        return ApiError(401, "the key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key")


def _name(host: str) -> str:
    """The name in a Host header; what is no host stays what it is."""
    try:
        return (urlsplit(f"//{host}").hostname or host).rstrip(".")
    except ValueError:
        return host


def is_local(host: str) -> bool:
    """Whether a host is an address, or a name that is not of the internet, which no web page can rebind."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return "." not in host or host.endswith(_OWN_ENDINGS)


class ReadToTheEnd:
    """ASGI middleware: the rest of a body is read before its answer is sent, or the connection would be reset.

    A client that is still sending when the connection is closed does not see the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        more = scope["type"] == "http" and Headers(scope=scope).get("expect") is None

        async def receiving() -> Message:
            nonlocal more
            message = await receive()
            more = more and message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            size = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(_REST_S):
                    while more and size < _REST_BYTES:
                        size += len((await receiving()).get("body", b""))
            await send(message)

        await self._app(scope, receiving, sending)
