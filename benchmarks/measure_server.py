"""What `specchat serve` costs beside decoding, and whether many clients are served alike.

Run from the repository, on a quiet machine: python -m benchmarks.measure_server --clients 1 --clients 64

For each number of clients: all ask at once, each another prompt, greedy, streamed. Printed are tokens per second beside
those of the engine alone on the same prompts, the share of the rounds' time that the server's own thread is busy, and
waits for the first token (the longest against the median).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from specchat.engine import Engine, EngineConfig, Finished, Message, Outbox, Request, Round
from tests.app.server.served import Served

PROMPTS = Path(__file__).parents[1] / "assets" / "prompts" / "everyday.txt"
MODEL = "smollm2-135m"
LIMITS = {1: 0.03, 64: 0.10}
"""Largest share of a round that the server may take, by the number of clients."""


@dataclass(slots=True)
class Heard:
    """What one client heard."""

    first_s: float = 0.0
    whole_s: float = 0.0
    text: str = ""


async def ask(port: int, prompt: str, tokens: int, *, speculation: bool) -> Heard:
    """One streamed reply, read without a library, which would take time from what is measured."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True}
    data = json.dumps({**body, "temperature": 0, "speculation": speculation}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    began = time.perf_counter()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    heard = Heard()
    parts = []
    async for line in reader:
        if line.startswith(b'data: {"') and b'"content":"' in line and b'"content":""' not in line:
            heard.first_s = heard.first_s or time.perf_counter() - began
            parts.append(line)
    heard.whole_s = time.perf_counter() - began
    writer.close()
    heard.text = "".join(json.loads(part[6:])["choices"][0]["delta"]["content"] for part in parts)
    return heard


def main() -> None:
    """Measure, and print a line for each number of clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--speculation", action="store_true", help="ask for records in every chunk")
    options = parser.parse_args()
    counts = options.clients or [1, 64]
    prompts = [line for line in PROMPTS.read_text("utf-8").splitlines() if line][: max(counts)]
    size = ("--slots", max(counts), "--context", 512)
    print("clients  tokens/s  engine alone  server's share  at most  first token: median  longest/median")
    for count in counts:
        with Served("--target", MODEL, *size) as served:
            asyncio.run(ask(served.port, "Hello.", 8, speculation=options.speculation))
            process = psutil.Process(served.process.pid)

            async def together(port: int = served.port, count: int = count) -> list[Heard]:
                asked = (
                    ask(port, prompt, options.tokens, speculation=options.speculation) for prompt in prompts[:count]
                )
                return await asyncio.gather(*asked)

            before, busy = served.metrics(), _main_thread(process)
            began = time.perf_counter()
            heard = asyncio.run(together())
            took = time.perf_counter() - began
            busy, after = _main_thread(process) - busy, served.metrics()
            served.stop()
        tokens = after["specchat_emitted_tokens_total"] - before["specchat_emitted_tokens_total"]
        rounds_s = after["specchat_round_seconds_total"] - before["specchat_round_seconds_total"]
        alone = _alone(prompts[:count], options.tokens, max(counts))
        most = f"{LIMITS[count]:.0%}" if count in LIMITS else "-"
        firsts = sorted(each.first_s for each in heard)
        print(
            f"{count:7}  {tokens / took:8.1f}  {alone:12.1f}  {busy / rounds_s:14.1%}  {most:>7}"
            f"  {median(firsts):18.2f}s  {firsts[-1] / median(firsts):14.2f}",
            flush=True,
        )


def _main_thread(process: psutil.Process) -> float:
    """Seconds that the server's loop has been busy."""
    schedule = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")
    if schedule.exists():  # in nanoseconds; the portable way counts in hundredths of a second
        return int(schedule.read_text().split()[0]) / 1e9
    return float(next(t.user_time + t.system_time for t in process.threads() if t.id == process.pid))


def _alone(prompts: list[str], tokens: int, slots: int) -> float:
    """Tokens per second of the engine on the same prompts, without a server."""
    engine = Engine(EngineConfig(MODEL, slots=slots, context=512))
    engine.start()
    engine.wait_ready()
    for _ in engine.stream(Request("warm", messages=(Message("user", "Hello."),), max_tokens=8)):
        pass
    outbox = Outbox()
    began = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), messages=(Message("user", prompt),), max_tokens=tokens), outbox)
    left, emitted = len(prompts), 0
    while left:
        event = outbox.get()
        left -= isinstance(event, Finished)
        emitted += len(event.emitted) if isinstance(event, Round) else 0
    took = time.perf_counter() - began
    engine.close()
    return emitted / took


if __name__ == "__main__":
    main()
