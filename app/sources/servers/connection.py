"""A connection to a server: its address, its key, limits on what it may send, and messages for its errors."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2

from specchat.app.sanitize import without_password
from specchat.app.sources.servers.kinds import KINDS
from specchat.app.sources.servers.protocol import Listing, Server
from specchat.engine import EngineError

CONNECT_S = 10.0
"""Seconds until a connection is made, and for any answer but a reply."""
SILENCE_S = 600.0
"""Seconds without a chunk until a reply counts as lost; a request may wait for a slot."""
MOST_BYTES = 8 << 20
"""Longest answer but a reply, and longest chunk of a reply."""
MOST_DEPTH = 64
MOST_MESSAGE = 1_000
"""Longest message of a server's error, in characters."""
_CHUNKS_PER_TOKEN, _MORE_CHUNKS = 4, 10_000
"""Most chunks of a reply."""
REFUSED = (401, 403)
LOST = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, RuntimeError, ValueError)
"""Raised by a connection that breaks, is closed, or cannot look its host up."""


class Socket:
    """The socket of one request, which other threads can cut."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._lock = threading.Lock()

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Callback of httpcore, which reports the socket once it is connected."""
        if name.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self._is_cut:
                self.cut()

    def cut(self) -> None:
        """Shut the socket down, which wakes the thread that reads from it."""
        with self._lock, suppress(OSError):
            self._is_cut = True
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Context manager: the socket is shut down after this time.

        Raises:
            TimeoutError: it was.
        """
        timer = threading.Timer(seconds, self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except LOST:
            if not self._is_cut:
                raise
        finally:
            timer.cancel()
        if self._is_cut:
            raise TimeoutError(f"no answer within {seconds:g} seconds")


class Connection:
    """HTTP to one server. Each request has its own connection, so that it can be cut.

    Args:
        url: of the server, with or without /v1; a name and a password in it are sent and never shown.
        key: its key, if it has one.

    Raises:
        EngineError: the URL is not an address, the key cannot be sent, or a proxy or certificate file cannot be used.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, login = _parse(url)
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise EngineError("the key in SPECCHAT_API_KEY has characters that no header can carry: correct it")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers["accept-encoding"] = "identity"
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        make = partial(httpx2.Client, base_url=self.url, headers=headers, timeout=timeout, auth=login)
        try:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._http = make(verify=httpx2.create_ssl_context(), limits=limits)
        except (ImportError, *LOST) as error:
            hint = "check the address, and the variables that set a proxy or certificates"
            raise EngineError(f"{self.url} cannot be used ({words(error)}): {hint}") from None

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def find_server(self, model: str | None) -> Server:
        """Recognise the server; `model` names one of its models.

        Raises:
            EngineError: it cannot be reached, refuses, speaks another protocol, or has no such model.
        """
        try:
            status, data = self._answer("/v1/models", None)
        except LOST as error:
            raise EngineError(f"{self.url} cannot be reached ({words(error)}): start a server there") from None
        try:
            models: Any = parse(data)["data"] if status == 200 else None
            known = all(isinstance(each, Mapping) and isinstance(each["id"], str) for each in models)
        except (ValueError, LookupError, TypeError):
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
            EngineError: the server refuses the key, or sends more than is read.
        """
        with suppress(*LOST):
            status, data = self._answer(path, body)
            return parse(data) if status == 200 else None
        return None

    def _answer(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """Status and body of a whole answer; errors as for `ask`, and connection errors (`LOST`)."""
        connected = Socket()
        with connected.limited(CONNECT_S), self.open(path, body, connected) as reply:
            data = self.read(reply)
        if reply.status_code in REFUSED:
            said = complaint(data, reply.status_code)
            raise EngineError(f"{self.url} refuses the key: {said} (put the right one into SPECCHAT_API_KEY)")
        return reply.status_code, data

    @contextmanager
    def open(self, path: str, body: Mapping[str, Any] | None, connected: Socket) -> Iterator[httpx2.Response]:
        """Context manager: the answer to a GET, or to a POST of a body, which is not read yet.

        Raises:
            EngineError: it is compressed, so that few bytes could become many.
        """
        method = "GET" if body is None else "POST"
        with self._http.stream(method, path, json=body, extensions={"trace": connected.trace}) as reply:
            if reply.headers.get("content-encoding", "identity").lower() != "identity":
                raise EngineError(f"{self.url} compresses its answers without being asked to: turn that off there")
            yield reply

    def read(self, reply: httpx2.Response) -> bytes:
        """The body of an answer.

        Raises:
            EngineError: it is too long.
        """
        data = bytearray()
        for part in reply.iter_raw():
            data += part
            if len(data) > MOST_BYTES:
                raise EngineError(
                    f"{self.url} sent an answer of more than {MOST_BYTES} bytes: it may be another server"
                )
        return bytes(data)


def parse(data: bytes) -> Any:
    """The JSON that a server sent.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        values = json.loads(data.decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [values]
    for _ in range(MOST_DEPTH):
        nested = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not (level := [child for children in nested for child in children]):
            return values
    raise ValueError("nested too deeply")


def chunks(reply: httpx2.Response, most_tokens: int) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, of a reply of at most this number of tokens.

    Raises:
        EngineError: the server reports an error, sends something else, or more than a reply consists of.
    """
    left = _CHUNKS_PER_TOKEN * most_tokens + _MORE_CHUNKS
    for line in _lines(reply):
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        try:
            values = parse(data)
            if not isinstance(values, dict):
                raise TypeError
        except (ValueError, TypeError):
            raise EngineError("the server sent something that is not JSON: it may speak another protocol") from None
        if values.get("error"):
            raise EngineError(complaint(data, reply.status_code))
        left -= 1
        if left < 0:
            raise EngineError(f"the server sent more chunks than a reply of {most_tokens} tokens has: it was left")
        yield values


def _lines(reply: httpx2.Response) -> Iterator[bytes]:
    """The lines of a stream. `iter_lines` also splits at characters that JSON may contain, such as U+2028.

    Raises:
        EngineError: a line is too long, or nothing but comments has come for too long.
    """
    rest, late = bytearray(), time.monotonic() + SILENCE_S
    for part in reply.iter_raw():
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            yield from map(bytes, lines)
            late = time.monotonic() + SILENCE_S if any(line.startswith(b"data:") for line in lines) else late
        if len(rest) > MOST_BYTES:
            raise EngineError(f"the server sent a chunk of more than {MOST_BYTES} bytes: it was left")
        if time.monotonic() > late:
            raise EngineError(f"the server sent no chunk for {SILENCE_S:g} seconds: ask again")
    yield bytes(rest)


def complaint(body: bytes, status: int) -> str:
    """The message of an error response."""
    with suppress(ValueError, LookupError, TypeError):
        said = parse(body)
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error if isinstance(error, str) else error["message"]
        if isinstance(message, str) and message.strip():
            return message[:MOST_MESSAGE]
    return f"the server answers with status {status}"


def words(error: Exception) -> str:
    """The first line of an error, or its name."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _parse(url: str) -> tuple[str, tuple[str, str] | None]:
    """The address without /v1, and the name and password that it contains.

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
        told = without_password(url)
        raise EngineError(f"{told} is not the address of a server: give one such as http://127.0.0.1:8000")
    given = parts.username is not None or parts.password is not None
    login = (unquote(parts.username or ""), unquote(parts.password or "")) if given else None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path.removesuffix('/v1')}", login
