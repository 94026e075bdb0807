"""Requests that no client should send, to a running `specchat serve`: each is refused with a 4xx, and nothing breaks.

Values of wrong types and sizes, text in every encoding, deep nesting, incomplete bodies, bytes that are no HTTP, slow
senders.
"""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle

from hypothesis import strategies as st

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


def fixed(key: str | None) -> list[Attempt]:
    """Connections that are the same in every run."""
    return [*_bodies(key), *_slow(key)]


def drawn(key: str | None) -> st.SearchStrategy[Attempt]:
    """Connections with other values, with bytes that are no request, and with less than was said."""
    junk = st.builds(lambda path, body: _whole("body", path, body, key), st.sampled_from(PATHS), st.binary())
    return st.one_of(_values(key), _values(key), junk, _partial(key))


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
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", data)
    return int(found[1]) if found else None


def verdict(attempt: Attempt, status: int | None) -> str | None:
    """What is wrong with a reply, if anything."""
    if status is None:
        return f"{attempt.kind}: no reply" if attempt.whole else None
    return f"{attempt.kind}: status {status}" if status >= 500 or status < 200 else None


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
    | st.sampled_from(["auto", "none", "ngram", "user", "a \0é" * 5000, json.loads("[" * 300 + "]" * 300)])
    | st.sampled_from([1e-300, 1e-38, 1e300, -1e300, 5e-324, 10**99, 10**400, 1e-20, 0.5, 1, 2]),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(st.characters(), max_size=20), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@st.composite
def _values(draw: st.DrawFn, key: str | None) -> Attempt:
    """A valid request with one or more fields replaced by something else."""
    path = draw(st.sampled_from(PATHS))
    said = {"messages": [{"role": "user", "content": "x"}]} if path == PATHS[0] else {"prompt": "x"}
    values = {"max_tokens": 2, **said} | draw(st.dictionaries(st.sampled_from(FIELDS), _JUNK, min_size=1, max_size=4))
    for name in ("max_tokens", "max_completion_tokens", "n"):
        if isinstance(values.get(name), int) and values[name] > 2:
            values[name] = 1 << 40  # what is valid is to be short
    if draw(st.integers(0, 4)) == 0:
        values["messages"] = [{"role": draw(st.sampled_from(("user", "x", None))), "content": draw(_JUNK)}]
    return _whole("value", path, json.dumps(values).encode(), key)


def _bodies(key: str | None) -> Iterator[Attempt]:
    """Whole bodies that are no request."""
    bodies = (
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        '{"prompt": "ä"}'.encode("utf-16"),
        '{"prompt": "ä"}'.encode("latin-1"),
        b'{"prompt": "x", "n": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "temperature": NaN, "n": -Infinity}',
        b'{"prompt": "x", "n": 1, "n": 2}',
        b'{"prompt": "x", "\\ud800": "\\udfff"}',
        b'{"prompt": "x", "\xed\xa0\x80": 1}',
        b'{"prompt": "' + b"x" * 2_000_000 + b'"}',
        b'{"messages": [' + b'{"role":"user","content":"x"},' * 20_000 + b'{"role":"user","content":"x"}]}',
    )
    return (_whole("body", path, body, key) for path, body in zip(cycle(PATHS), bodies, strict=False))


def _partial(key: str | None) -> st.SearchStrategy[Attempt]:
    """Bodies that are shorter than was said, and no more comes."""
    body = b'{"prompt": "x", "max_tokens": 2}'
    head = _head(PATHS[1], len(body), key)
    return st.integers(0, len(body) - 1).map(lambda cut: Attempt("partial", (head + body[:cut],), whole=False))


def _slow(key: str | None) -> Iterator[Attempt]:
    """A request in small pieces, with a value that is refused."""
    body = b'{"prompt": "x", "max_tokens": -2}'
    data = _head(PATHS[1], len(body), key) + body
    pieces = ([data[at : at + size] for at in range(0, len(data), size)] for size in (7, 20, 60))
    return (Attempt("slow", tuple(each), pause_s=0.002) for each in pieces)


def _whole(kind: str, path: str, body: bytes, key: str | None) -> Attempt:
    return Attempt(kind, (_head(path, len(body), key) + body,))


def _head(path: str, length: int, key: str | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {length}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode()
