"""uvicorn's HTTP protocol, with limits on the head of a request, and errors in the format of the API."""

from __future__ import annotations

import asyncio
import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specchat.app.server.errors import ApiError

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
    _repeats_head: bool = False
    """Whether a head is parsed a second time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
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

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP with an error of the API, and close the connection."""
        if self.transport.is_closing():
            return
        if self._answered:  # otherwise the error would become part of the answer
            body = bytes(ApiError(400, f"{msg.rstrip('.')}: send HTTP/1.1", code="invalid_http").response().body)
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
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
