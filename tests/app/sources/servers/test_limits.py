"""Servers that send without end, or what takes too much memory or depth: each is left with a sentence."""

import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from typing import Any

import pytest

from specchat.app.sources.attached import AttachedEngine
from specchat.engine import EngineError, FinishReason
from specchat.engine.events import Died, Ready
from tests.app.cli.commands.command import command
from tests.app.recorded import replied
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded, answered, met

MODELS = json.dumps(shapes.models("x")).encode()


@contextmanager
def answering(answers: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    """The URL of a server with the headers and the parts of the answer to each path; parts may have no end."""

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            data = client.recv(1 << 16).decode()
            head, _, body = data.partition("\r\n\r\n")
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            while length and len(body) < int(length[1]):
                body += client.recv(1 << 16).decode()
            headers, parts = answers[head.split()[1]]
            client.sendall(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}\r\n".encode())
            for part in parts:
                client.sendall(part)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(bound.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as bound:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        bound.shutdown(socket.SHUT_RDWR)


def event(values: Any) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("headers", "parts", "words"),
    [
        ("", [b'{"data": ' + b"[" * 200_000], "lists no models at /v1/models"),
        ("", [b'{"data": ' + b"[" * 500 + b"]" * 500 + b"}"], "lists no models at /v1/models"),
        ("", [b'{"data": [{"id": "x", "speculation": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}]}"], "lists no models"),
        ("Content-Encoding: gzip\r\n", [gzip.compress(b" " * 100_000_000)], "compresses its answers without"),
        ("", repeat(b"[" * 65536), "sent an answer of more than"),
        (
            "Transfer-Encoding: chunked\r\n",
            repeat(b"8000\r\n" + b" " * 0x8000 + b"\r\n"),
            "sent an answer of more than",
        ),
    ],
)
def test_a_list_of_models_without_end_or_depth_is_left(headers: str, parts: Any, words: str) -> None:
    with answering({"/v1/models": (headers, parts)}) as url:
        died = met(url)
    assert isinstance(died, Died)
    assert words in died.message


@pytest.mark.parametrize(
    ("parts", "reason", "words"),
    [
        (repeat(event(shapes.chunk("w "))), FinishReason.LENGTH, ""),
        (repeat(event(shapes.chunk("w" * 1_000_000))), FinishReason.LENGTH, ""),
        (repeat(event(shapes.chunk(""))), FinishReason.ERROR, "more chunks than a reply of 5 tokens has"),
        (chain([b"data: "], repeat(b"x" * 65536)), FinishReason.ERROR, "a chunk of more than"),
        ([b"data: " + b'{"choices":' * 90_000 + b"\n\n"], FinishReason.ERROR, "something that is not JSON"),
    ],
)
def test_a_reply_without_end_ends_at_its_limit(parts: Any, reason: FinishReason, words: str) -> None:
    with answering({"/v1/models": ("", [MODELS]), CHAT: ("", parts)}) as url:
        events = answered(url, max_tokens=5)
    assert (events[-1].reason, words in events[-1].message) == (reason, True), events[-1]
    assert len(replied(events).rounds) <= 5
    if reason is FinishReason.LENGTH:
        assert replied(events).text


def test_a_password_in_the_address_is_sent_and_never_shown() -> None:
    said = []
    with Recorded(shapes.PLAIN, {CHAT: [shapes.chunk("a", "stop")]}) as server:
        server.lets_in = lambda _, authorization: authorization == "Basic bWU6cy9lY3JldA=="  # me:s/ecret
        for name in ("me:s%2Fecret", "me:wr%40ngsecret"):
            url = server.url.replace("//", f"//{name}@")
            said += [met(url), AttachedEngine(url).url, *answered(url)]
            said.append(command("compare", "hi", "--attach", url, "--slots", 0).err)
            said.append(command("ask", "hi", "--attach", url, "--slots", 3).err)
    assert isinstance(said[0], Ready)
    assert any(isinstance(each, Died) for each in said)
    for address in ("http://me:s/ecret@x/other", "me:secret@[::1", "ftp://me:secret@x"):
        with pytest.raises(EngineError) as error:
            AttachedEngine(address)
        said.append(str(error.value))
    assert not [each for each in said if "ecret" in str(each) or "me:" in str(each)]
