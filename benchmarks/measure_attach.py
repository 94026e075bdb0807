"""What an attached server's chunks cost here: from the moment a chunk is sent until its record is there.

Run from the repository, on a quiet machine: python -m benchmarks.measure_attach

For each kind of server, a recorded stream is sent at a steady pace, once to a bare socket and once to the app's source.
Printed are the delays of both, and what the source adds, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from specchat.app.sources.attached import AttachedEngine
from specchat.engine import Finished, Message, Outbox, Ready, Request, Round, read_trace, to_json
from tests.app.recorded import TRACES
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, Recorded

ASKED = Request("r", (Message("user", "Hello?"),))
LIMIT_MS = 2.0
"""What attaching may add to a chunk."""


class Paced(list[Mapping[str, Any] | str]):
    """Chunks that come at a steady pace; remembers when each was sent."""

    def __init__(self, chunks: Sequence[Mapping[str, Any] | str], pace_s: float) -> None:
        super().__init__(chunks)
        self._pace_s = pace_s
        self.sent: list[float] = []

    def __iter__(self) -> Iterator[Mapping[str, Any] | str]:
        self.sent = []
        for chunk in super().__iter__():
            time.sleep(self._pace_s)
            self.sent.append(time.perf_counter())
            yield chunk


def specchat_chunks(count: int) -> list[dict[str, Any]]:
    """Chunks of a `specchat serve`, with the rounds of a recorded trace."""
    rounds = [record for record in read_trace(TRACES / "sampled.jsonl") if isinstance(record, Round)]
    lines = [json.loads(to_json(rounds[number % len(rounds)])) for number in range(count)]
    return [shapes.chunk("x", speculation=line) for line in lines]


def ready() -> dict[str, Any]:
    """The list of models of a `specchat serve`."""
    record = Ready("m", None, ("none",), "cpu", "", "float32", 512, 1, 0, 0, 0.0)
    return {"/v1/models": shapes.models("specchat", speculation=json.loads(to_json(record)))}


KINDS: dict[str, tuple[Mapping[str, Any], Callable[[int], Sequence[Mapping[str, Any]]]]] = {
    "specchat": (ready(), specchat_chunks),
    "llama.cpp": (shapes.LLAMA_CPP, lambda n: [shapes.chunk(" word", **shapes.timings(1 + i)) for i in range(n)]),
    "vLLM": (shapes.VLLM, lambda n: [shapes.spoken([" word"], 1 + i) for i in range(n)]),
    "any other": (shapes.PLAIN, lambda n: [shapes.chunk(" word") for _ in range(n)]),
}


def main() -> None:
    """Measure, and print a line for each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=500)
    parser.add_argument("--pace-ms", type=float, default=5.0)
    options = parser.parse_args()
    print(f"{'server':10}  bare socket: median  attached: median     99 %   adds (at most {LIMIT_MS:g} ms)")
    for name, (pages, make) in KINDS.items():
        paced = Paced(make(options.chunks), options.pace_ms / 1000)
        with Recorded(pages, {CHAT: paced}) as server:
            bare = _bare(server.url, paced)
            attached = _attached(server.url, paced)
        added = median(attached) - median(bare)
        print(
            f"{name:10}  {median(bare):16.3f} ms  {median(attached):13.3f} ms"
            f"  {quantiles(attached, n=100)[-1]:7.3f}   {added:.3f}",
            flush=True,
        )


def _attached(url: str, paced: Paced) -> list[float]:
    """Milliseconds from each chunk to its round."""
    engine, outbox, came = AttachedEngine(url), Outbox(), list[float]()
    engine.submit(ASKED, outbox)
    while not isinstance(event := outbox.get(60), Finished):
        if isinstance(event, Round):
            came.append(time.perf_counter())
    engine.close()
    return _delays(paced.sent, came)


def _bare(url: str, paced: Paced) -> list[float]:
    """Sending the records to a socket that only looks for the ends of lines."""
    body = b"{}"
    came = []
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as connection:
        connection.sendall(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        while data := connection.recv(1 << 16):
            came += [time.perf_counter()] * data.count(b"data: ")
    return _delays(paced.sent, came)


def _delays(sent: Sequence[float], came: Sequence[float]) -> list[float]:
    return [1000 * (there - here) for here, there in zip(sent, came, strict=True)]


if __name__ == "__main__":
    main()
