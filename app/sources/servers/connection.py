"""A connection to a server: its address, its key, and messages for its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2

from specchat.app.sources.servers.kinds import KINDS
from specchat.app.sources.servers.protocol import Listing, Server
from specchat.engine import EngineError

KEEP_S = 1.0
"""Seconds that an idle connection is reused: servers close theirs after a few seconds."""
CONNECT_S = 10.0
SILENCE_S = 600.0
"""Seconds without data until a reply counts as lost; a request may wait for a slot."""
REFUSED = (401, 403)
LOST = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, RuntimeError, ValueError)
"""Raised by a connection that breaks, is closed, or cannot look its host up."""


class Connection:
    """HTTP to one server.

    Args:
        url: of the server, with or without /v1.
        key: its key, if it has one.

    Raises:
        EngineError: the URL is not an address, the key cannot be sent, or a proxy or certificate file cannot be used.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = _base(url)
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise EngineError("the key in SPECCHAT_API_KEY has characters that no header can carry: correct it")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        make = partial(httpx2.Client, base_url=self.url, headers=headers, timeout=timeout)
        try:
            make = partial(make, verify=httpx2.create_ssl_context())
            self.http = make(limits=httpx2.Limits(max_connections=None, keepalive_expiry=KEEP_S))
            self.replies = make(limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0))
            """For streams: each has its own connection, so that it can be cut."""
        except (ImportError, *LOST) as error:
            hint = "check the address, and the variables that set a proxy or certificates"
            raise EngineError(f"{self.url} cannot be used ({words(error)}): {hint}") from None

    def close(self) -> None:
        """Close all connections."""
        self.http.close()
        self.replies.close()

    def find_server(self, model: str | None) -> Server:
        """Recognise the server; `model` names one of its models.

        Raises:
            EngineError: it cannot be reached, refuses, speaks another protocol, or has no such model.
        """
        try:
            reply = self.http.get("/v1/models", timeout=CONNECT_S)
        except LOST as error:
            raise EngineError(f"{self.url} cannot be reached ({words(error)}): start a server there") from None
        self._check_key(reply)
        try:
            models = reply.raise_for_status().json()["data"]
            known = all(isinstance(each, Mapping) and isinstance(each["id"], str) for each in models)
        except (httpx2.HTTPError, ValueError, LookupError, TypeError):
            known = False
        if not known:
            raise EngineError(f"{self.url} lists no models at /v1/models: it is not a server of the OpenAI protocol")
        if not models:
            raise EngineError(f"{self.url} has no model: load one there")
        listing = Listing(self.url, models, model, self.ask)
        return next(server for find in KINDS if (server := find(listing)) is not None)

    def ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """GET, or POST of a body. Returns the JSON of the answer, None if it has none or failed.

        Raises:
            EngineError: the server refuses the key.
        """
        with suppress(*LOST):
            reply = self.http.request("GET" if body is None else "POST", path, json=body, timeout=CONNECT_S)
            self._check_key(reply)
            return reply.json() if reply.status_code == 200 else None
        return None

    def _check_key(self, reply: httpx2.Response) -> None:
        if reply.status_code in REFUSED:
            said = complaint(reply.content, reply.status_code)
            raise EngineError(f"{self.url} refuses the key: {said} (put the right one into SPECCHAT_API_KEY)")


def chunks(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events.

    Raises:
        EngineError: the server reports an error, or sends something else.
    """
    for line in _lines(reply):
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        try:
            values = json.loads(data.decode(errors="replace"))
            if not isinstance(values, dict):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise EngineError("the server sent something that is not JSON: it may speak another protocol") from None
        if values.get("error"):
            raise EngineError(complaint(data, reply.status_code))
        yield values


def _lines(reply: httpx2.Response) -> Iterator[bytes]:
    """The lines of a stream. `iter_lines` also splits at characters that JSON may contain, such as U+2028."""
    rest = b""
    for data in reply.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    yield rest


def complaint(body: bytes, status: int) -> str:
    """The message of an error response."""
    with suppress(ValueError, LookupError, TypeError):
        said = json.loads(body)
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error if isinstance(error, str) else error["message"]
        if isinstance(message, str) and message.strip():
            return message
    return f"the server answers with status {status}"


def words(error: Exception) -> str:
    """The first line of an error, or its name."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _base(url: str) -> str:
    """The address without /v1.

    Raises:
        EngineError: it is not an address.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        known = (parts.scheme in ("http", "https") and parts.hostname and parts.port is None) or parts.port
    except ValueError:
        known = False
    path = parts.path.rstrip("/") if known else ""
    if not known or (path and not path.endswith("/v1")):
        raise EngineError(f"{url} is not the address of a server: give one such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"
