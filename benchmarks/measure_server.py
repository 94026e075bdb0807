"""The overhead of `specchat serve` over decoding, and the fairness between clients.

Run from the repository, on a quiet machine: python -m benchmarks.measure_server --clients 1 --clients 64

All clients send a different prompt at once, greedy and streamed; a few clients send several, a new one when a reply has
ended. The same prompts go to the engine alone in the same order, alternating with the server, which is then idle.
Printed are the medians of several turns: tokens per second of the server and of the engine alone, the busy time of the
server's thread over the time of the rounds, and times to the first token (and the longest over the median).
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from specchat.engine import Engine, EngineConfig, Message, Request
from specchat.engine.tools.runner import reply_tokens, run_requests, running
from tests.app.server.served import Served

PROMPTS = Path(__file__).parents[1] / "assets" / "prompts" / "everyday.txt"
MODEL = "smollm2-135m"
CONTEXT = 512
LIMITS = {1: 0.03, 64: 0.10}
"""Largest share of a round that the server may take, by the number of clients."""
LEAST_REPLIES = 16
"""Replies of a turn, however few clients there are: a share of rounds needs many of them."""
_PAUSE_S = 0.002
"""Polling interval: real clients run on other machines, so these take little processor time."""
_TEXT = re.compile(rb'"content":"[^"]')


@dataclass(slots=True)
class Reply:
    """One streamed reply, read without a client library, which would slow the server down."""

    began: float
    first_s: float = 0.0
    data: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes) -> None:
        """Add received data."""
        self.data += part
        if not self.first_s and _TEXT.search(self.data):
            self.first_s = time.perf_counter() - self.began


@dataclass(frozen=True, slots=True)
class Turn:
    """Figures of one turn of a server."""

    speed: float
    """Tokens per second."""
    share: float
    """Share of the rounds' time in which the server's thread was busy."""
    median_s: float
    """Median wait for the first token."""
    longest: float
    """The longest wait against the median."""


def main() -> None:
    """Measure, and print a line for each number of clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--speculation", action="store_true", help="ask for records in every chunk")
    options = parser.parse_args()
    counts = options.clients or [1, 64]
    slots = max(counts)
    print("clients  tokens/s  engine alone  ratio  server's share  at most  first token: median  longest/median")
    with (
        running(EngineConfig(MODEL, slots=slots, context=CONTEXT)) as (engine, _, _),
        Served("--target", MODEL, "--slots", slots, "--context", CONTEXT) as served,
    ):
        for count in counts:
            alone, turns = [], []
            for turn in range(options.turns + 1):
                prompts = prompts_of(count, turn)
                speed = speed_alone(engine, prompts, count, options.tokens)
                found = serve(served, prompts, count, options.tokens, speculation=options.speculation)
                if turn:  # the first one warms both up
                    alone.append(speed)
                    turns.append(found)
            ratio = median(turn.speed / other for turn, other in zip(turns, alone, strict=True))
            most = f"{LIMITS[count]:.0%}" if count in LIMITS else "-"
            longest = f"{median(turn.longest for turn in turns):.2f}" if count >= LEAST_REPLIES else "-"
            print(
                f"{count:7}  {median(turn.speed for turn in turns):8.1f}  {median(alone):12.1f}  {ratio:5.2f}"
                f"  {median(turn.share for turn in turns):14.1%}  {most:>7}"
                f"  {median(turn.median_s for turn in turns):18.2f}s  {longest:>14}",
                flush=True,
            )
        served.stop()


def prompts_of(clients: int, turn: int) -> list[str]:
    """Prompts of one turn; the prompts of another begin otherwise, so that no cache holds them."""
    prompts = [f"{turn + 1}. {line}" for line in PROMPTS.read_text("utf-8").splitlines() if line]
    return prompts[: max(clients, LEAST_REPLIES)]


def serve(served: Served, prompts: Sequence[str], clients: int, tokens: int, *, speculation: bool) -> Turn:
    """Let clients ask a server."""
    process = psutil.Process(served.process.pid)
    before = served.metrics()
    busy, began = _main_thread(process), time.perf_counter()
    replies = ask(served.port, prompts, clients, tokens, speculation=speculation)
    took, busy = time.perf_counter() - began, _main_thread(process) - busy
    after = served.metrics()
    emitted, rounds_s = (
        after[name] - before[name] for name in ("specchat_emitted_tokens_total", "specchat_round_seconds_total")
    )
    firsts = sorted(reply.first_s for reply in replies)
    return Turn(emitted / took, busy / rounds_s, median(firsts), firsts[-1] / median(firsts))


def ask(port: int, prompts: Sequence[str], clients: int, tokens: int, *, speculation: bool) -> list[Reply]:
    """Send the prompts by `count` clients at once; a new one is sent when a reply has ended."""
    waiting = deque(prompts)
    replies: list[Reply] = []
    with selectors.DefaultSelector() as selector:

        def send_next() -> None:
            if waiting:
                replies.append(Reply(time.perf_counter()))
                connection = _post(port, waiting.popleft(), tokens, speculation=speculation)
                selector.register(connection, selectors.EVENT_READ, replies[-1])

        for _ in range(clients):
            send_next()
        while selector.get_map():
            time.sleep(_PAUSE_S)
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if part := key.fileobj.recv(1 << 18):
                    key.data.add(part)
                    continue
                selector.unregister(key.fileobj)
                key.fileobj.close()
                send_next()
    for reply in replies:
        assert b"data: [DONE]" in reply.data, bytes(reply.data[:500])
    return replies


def _post(port: int, prompt: str, tokens: int, *, speculation: bool) -> socket.socket:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True}
    data = json.dumps({**body, "temperature": 0, "speculation": speculation}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (len(data), data)
    )
    connection.setblocking(False)
    return connection


def _main_thread(process: psutil.Process) -> float:
    """Seconds that the server's loop has been busy."""
    schedule = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")
    if schedule.exists():  # in nanoseconds; the portable way counts in hundredths of a second
        return int(schedule.read_text().split()[0]) / 1e9
    return float(next(t.user_time + t.system_time for t in process.threads() if t.id == process.pid))


def speed_alone(engine: Engine, prompts: Sequence[str], clients: int, tokens: int) -> float:
    """Tokens per second of the engine on the same prompts, `count` at once, without a server."""
    requests = [
        Request(f"alone-{number}", messages=(Message("user", text),), max_tokens=tokens)
        for number, text in enumerate(prompts)
    ]
    began = time.perf_counter()
    replies = run_requests(engine.submit, requests, clients)
    return sum(len(reply_tokens(events)) for events in replies) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
