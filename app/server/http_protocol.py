"""uvicorn's HTTP protocol, with limits on the head of a request and refusals in the shape that all others have."""

from __future__ import annotations

import asyncio
import sys

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specchat.app.server.errors import ApiError

HEADERS_S = 20.0
"""Seconds that a client may take to send the head of a request."""
HEAD_BYTES = 1 << 16
"""The longest head."""
_FRAMING = (b"content-length", b"transfer-encoding")


class HttpProtocol(HttpToolsProtocol):
    """Protocol of one connection, which is closed if a request does not get as far as its body."""

    _too_slow: asyncio.TimerHandle | None = None
    _data: bytes = b""
    """What is being parsed."""
    _head: int = 0
    """Bytes that have come of a head that is not complete."""
    _in_head: bool = True
    _repeats_head: bool = False
    """Whether a head is parsed a second time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
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
        """A part of what is asked for."""
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
        """The client has gone."""
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: say so as everything else is said, and hang up."""
        if self.transport.is_closing():
            return
        if self._answered:  # else a refusal would be read as a part of the answer
            body = bytes(ApiError(400, f"{msg.rstrip('.')}: send HTTP/1.1", code="invalid_http").response().body)
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """A client offers another protocol (some offer HTTP/2 with every request): it is answered in this one.

        The parser takes what follows the head for that protocol, so another one reads it, as the body that it is.
        Called while the parser's complaint is handled, which says where the head has ended.
        """
        complaint = sys.exc_info()[1]
        if not isinstance(complaint, httptools.HttpParserUpgrade):
            return
        rest = self._data[complaint.args[0] :]
        framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        self.cycle.more_body, self._repeats_head = True, True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        self._repeats_head = False
        self._data = rest
        super().data_received(rest)

    @property
    def _answered(self) -> bool:
        """Whether there is no request that waits for an answer or gets one."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        if self._too_slow is None:
            self._too_slow = self.loop.call_later(HEADERS_S, self.timeout_keep_alive_handler)

    def _stop_expecting(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None
