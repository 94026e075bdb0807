"""Requests that no client should send, to a running `specchat serve`: each is refused with a 4xx, and nothing breaks.

They are drawn from a seed: values of wrong types and sizes, text in every encoding, deep nesting, incomplete bodies,
bytes that are no HTTP, slow senders.
"""

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from specchat.app.server.protocol import IGNORED, NEUTRAL, ChatBody, CompletionBody

PATIENCE_S = 60
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize")
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *NEUTRAL, *IGNORED, "unheard_of"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection."""

    kind: str
    parts: tuple[bytes, ...]
    """What is sent, with a pause between parts."""
    whole: bool = True
    """Whether the request is complete, so that a reply must come."""
    pause_s: float = 0.0


def attempts(seed: int, key: str | None) -> Iterator[Attempt]:
    """Endless attempts."""
    draw = random.Random(seed)
    while True:
        yield draw.choice((_value, _value, _value, _body, _frame, _partial, _slow))(draw, key)


def send(port: int, attempt: Attempt) -> int | None:
    """The status of the reply; None if the connection was closed without one.

    Raises:
        TimeoutError: nothing came.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            for part in attempt.parts:
                connection.sendall(part)
                time.sleep(attempt.pause_s)
            if not attempt.whole:
                connection.shutdown(socket.SHUT_WR)
        data = b""
        with suppress(ConnectionResetError):
            while more := connection.recv(1 << 16):
                data += more
                if attempt.kind == "frame" and b"\r\n" in data:
                    break  # such a request may leave the connection open
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", data)
    return int(found[1]) if found else None


def verdict(attempt: Attempt, status: int | None) -> str | None:
    """What is wrong with a reply, if anything."""
    if status is None:
        return f"{attempt.kind}: no reply" if attempt.whole else None
    return f"{attempt.kind}: status {status}" if status >= 500 or status < 200 else None


def _value(draw: random.Random, key: str | None) -> Attempt:
    """A valid request with one or more fields replaced by something else."""
    path = draw.choice(PATHS)
    values: dict[str, Any] = {"max_tokens": 2}
    if path == PATHS[0]:
        values["messages"] = [{"role": "user", "content": "x"}]
    else:
        values["prompt"] = "x"
    for _ in range(draw.choice((1, 1, 2, 4))):
        values[draw.choice(FIELDS)] = _junk(draw, 3)
    for name in ("max_tokens", "max_completion_tokens", "n"):
        if isinstance(values.get(name), int) and values[name] > 2:
            values[name] = 1 << 40  # what is valid is to be short
    if draw.random() < 0.2:
        values["messages"] = [{"role": draw.choice(("user", "x", None)), "content": _junk(draw, 2)}]
    return _whole("value", path, json.dumps(values).encode(), key)


def _junk(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(12 if depth else 9)
    match kind:
        case 0:
            return None
        case 1:
            return draw.random() < 0.5
        case 2:
            return draw.choice((0, -1, 1, 2, 1 << 31, 1 << 63, 1 << 64, -(1 << 80), draw.randrange(-100, 100000)))
        case 3:
            return draw.choice((0.0, -0.5, 1e308, 5e-324, 0.999, draw.uniform(-3, 3)))
        case 4:
            return float(draw.choice(("nan", "inf", "-inf")))
        case 5:
            return ""
        case 6:
            return "".join(chr(draw.choice((0, 9, 27, 65, 0x202E, 0xD800, 0xFFFF, 0x1F600))) for _ in range(5))
        case 7:
            return draw.choice("a \u0000é") * draw.choice((1, 100, 20000))
        case 8:
            return draw.choice(("auto", "none", "ngram", "user", "x"))
        case 9:
            return [_junk(draw, depth - 1) for _ in range(draw.choice((0, 1, 3, 40)))]
        case 10:
            return {str(_junk(draw, 0))[:20]: _junk(draw, depth - 1) for _ in range(draw.randrange(4))}
        case _:
            nested: Any = 1
            for _ in range(draw.choice((10, 300))):
                nested = [nested] if draw.random() < 0.5 else {"a": nested}
            return nested


def _body(draw: random.Random, key: str | None) -> Attempt:
    """A whole body that is no request."""
    bodies = (
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        draw.randbytes(draw.choice((1, 100, 10_000))),
        '{"prompt": "ä"}'.encode("utf-16"),
        '{"prompt": "ä"}'.encode("latin-1"),
        b'{"prompt": "x", "n": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "' + b"x" * draw.choice((300_000, 2_000_000)) + b'"}',
        b'{"messages": [' + b'{"role":"user","content":"x"},' * 20_000 + b'{"role":"user","content":"x"}]}',
    )
    return _whole("body", draw.choice(PATHS), draw.choice(bodies), key)


def _frame(draw: random.Random, key: str | None) -> Attempt:
    """Bytes that are not quite HTTP, or a route that is not there."""
    head = _head(PATHS[0], 2, key)
    lines = (
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", True),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", True),
        (b"GET /%ff%00/../v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", True),
        (b"GET /v1/models/" + b"a" * 30_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n", True),
        (b"GET / HTTP/9.9\r\n\r\n", True),
        (b"\r\n\r\n\r\n \r\n", True),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(200) + b"\r\n\r\n", True),
        (head.replace(b"Content-Length: 2", b"Content-Length: -2") + b"{}", True),
        (head.replace(b"Content-Length: 2", b"Content-Length: x") + b"{}", True),
        (head.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n", False),
        (head.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n", True),
        (head.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3") + b"{}", True),
    )
    data, whole = draw.choice(lines)
    return Attempt("frame", (data,), whole)


def _partial(draw: random.Random, key: str | None) -> Attempt:
    """A body that is shorter than was said, and no more comes."""
    body = b'{"prompt": "x", "max_tokens": 2}'
    cut = draw.randrange(len(body))
    return Attempt("partial", (_head(PATHS[1], len(body), key) + body[:cut],), whole=False)


def _slow(draw: random.Random, key: str | None) -> Attempt:
    """A request in small pieces, with a value that is refused."""
    body = b'{"prompt": "x", "max_tokens": -2}'
    data = _head(PATHS[1], len(body), key) + body
    size = draw.choice((7, 20, 60))
    return Attempt("slow", tuple(data[at : at + size] for at in range(0, len(data), size)), pause_s=0.002)


def _whole(kind: str, path: str, body: bytes, key: str | None) -> Attempt:
    return Attempt(kind, (_head(path, len(body), key) + body,))


def _head(path: str, length: int, key: str | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {length}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode()
