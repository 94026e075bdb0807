"""The overhead of `specchat serve` over decoding, and the fairness between clients.

Run from the repository, on a quiet machine: python -m benchmarks.measure_server --clients 1 --clients 64

All clients send a different prompt at once, greedy and streamed; a few clients send several prompts, one after another.
The same prompts go to the engine alone in the same order, alternating with the server, which is then idle. Printed are
the medians of several turns: tokens per second of the server and of the engine alone, the busy time of the server's
thread over the time of the rounds, and times to the first token (and the longest over the median).
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from specchat.engine import Engine, EngineConfig, Finished, Message, Outbox, Request, Round
from specchat.engine.tools.runner import running
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

Chains = list[list[str]]
"""The prompts of each client, in order."""


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
    """Of the rounds' time, that the server's thread was busy."""
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
                chains = chains_of(count, turn)
                speed = speed_alone(engine, chains, options.tokens)
                found = serve(served, chains, options.tokens, speculation=options.speculation)
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


def chains_of(clients: int, turn: int) -> Chains:
    """Prompts of one turn; those of another begin otherwise, so that no cache holds them."""
    prompts = [f"{turn + 1}. {line}" for line in PROMPTS.read_text("utf-8").splitlines() if line]
    replies = max(clients, LEAST_REPLIES)
    return [prompts[client:replies:clients] for client in range(clients)]


def serve(served: Served, chains: Chains, tokens: int, *, speculation: bool) -> Turn:
    """Let clients ask a server."""
    process = psutil.Process(served.process.pid)
    before = served.metrics()
    busy, began = _main_thread(process), time.perf_counter()
    replies = ask(served.port, chains, tokens, speculation=speculation)
    took, busy = time.perf_counter() - began, _main_thread(process) - busy
    after = served.metrics()
    emitted, rounds_s = (
        after[name] - before[name] for name in ("specchat_emitted_tokens_total", "specchat_round_seconds_total")
    )
    firsts = sorted(reply.first_s for reply in replies)
    return Turn(emitted / took, busy / rounds_s, median(firsts), firsts[-1] / median(firsts))


def ask(port: int, chains: Chains, tokens: int, *, speculation: bool) -> list[Reply]:
    """Send the prompts of all clients at once."""
    left = [list(chain) for chain in chains]
    replies: list[Reply] = []
    with selectors.DefaultSelector() as selector:

        def send_next(prompts: list[str]) -> None:
            if prompts:
                replies.append(Reply(time.perf_counter()))
                connection = _post(port, prompts.pop(0), tokens, speculation=speculation)
                selector.register(connection, selectors.EVENT_READ, (prompts, replies[-1]))

        for prompts in left:
            send_next(prompts)
        while selector.get_map():
            time.sleep(_PAUSE_S)
            for key, _ in selector.select():
                prompts, reply = key.data
                assert isinstance(key.fileobj, socket.socket)
                if part := key.fileobj.recv(1 << 18):
                    reply.add(part)
                    continue
                selector.unregister(key.fileobj)
                key.fileobj.close()
                send_next(prompts)
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


def speed_alone(engine: Engine, chains: Chains, tokens: int) -> float:
    """Tokens per second of the engine on the same prompts, without a server."""
    outbox, left = Outbox(), [list(chain) for chain in chains]

    def send_next(client: int, prompts: Sequence[str]) -> None:
        message = Message("user", prompts[0])
        engine.submit(Request(f"{client}/{len(prompts)}", messages=(message,), max_tokens=tokens), outbox)

    began = time.perf_counter()
    for client, prompts in enumerate(left):
        send_next(client, prompts)
    running, emitted = len(left), 0
    while running:
        event = outbox.get()
        emitted += len(event.emitted) if isinstance(event, Round) else 0
        if isinstance(event, Finished):
            client = int(event.request_id.split("/")[0])
            left[client].pop(0)
            if left[client]:
                send_next(client, left[client])
            else:
                running -= 1
    return emitted / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
