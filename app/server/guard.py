"""What every request passes first: whose page it comes from, and the key."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specchat.app.server.errors import ApiError

OPEN = ("/health",)
"""Paths that need no key: they say nothing but whether the server is well."""


class Guard:
    """ASGI middleware that refuses foreign web pages, and callers without the key.

    A browser lets any page send requests to 127.0.0.1, and names the page's origin; programs send none.

    Args:
        app: what is guarded.
        key: the key that callers must give, if any.
        origins: web pages that may ask; "*" for all.
    """

    def __init__(self, app: ASGIApp, key: str | None, origins: Collection[str]) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and not self._origins & {origin, "*"}:
            return ApiError(403, f"pages of {origin!a:.80} may not ask: name it with --cors", code="origin_not_allowed")
        if scope["method"] == "OPTIONS" and origin is not None:
            return None  # a browser asks whether it may ask: without the key
        if self._key is None or scope["path"] in OPEN:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key):
            return None
        return ApiError(401, "the key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key")
