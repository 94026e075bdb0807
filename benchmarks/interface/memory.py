"""What a long stored chat takes: memory, and time to scroll through it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles

import psutil

from benchmarks.interface.paced import TRACES
from benchmarks.interface.running import ENTER, QUIT, Row, absorb, paced_app
from specchat.app.storage.store import Store
from specchat.engine import Finished, FinishReason, Round, message_parts, read_trace, to_json
from tests.terminal import Terminal

TURNS, TOKENS = 200, 100_000
CHATS, DOWN, PAGE_UP = "\x02", "\x1b[B", "\x1b[5~"
QUIET_S = 0.3
"""Nothing has been written for this long: the screen is drawn."""


def memory(pages: int) -> Iterator[Row]:
    """Memory of the app with the chat opened and scrolled through, and without it."""
    with tempfile.TemporaryDirectory() as folder:
        write_chat(Path(folder) / "data" / "specchat.db")
        with paced_app(Path(folder)) as terminal:
            absorb(terminal, 3)
            empty = resident(terminal)
            terminal.type(CHATS)
            terminal.wait_for("u undo")
            start = time.monotonic()
            terminal.type(DOWN + ENTER)
            terminal.wait_for("complete", 300)
            opened_s = time.monotonic() - start
            absorb(terminal, 3)
            opened = resident(terminal)
            waits = [page_s(terminal) * 1e3 for _ in range(pages)]
            scrolled = resident(terminal)
            terminal.leave(QUIT)
    yield (
        "chat of 200 turns, 100k tokens",
        f"{opened - empty:6.1f} MB above none, after scrolling {scrolled - empty:.1f}",
    )
    yield "opening it", f"{opened_s:6.2f} s"
    yield "a page up in it", f"{median(waits):6.1f} ms, {quantiles(waits, n=20)[-1]:.1f} at the 95th percentile"


def write_chat(database: Path) -> None:
    """Store a chat of recorded rounds."""
    rounds = cycle(record for record in read_trace(TRACES / "code.jsonl") if isinstance(record, Round))
    with Store(database) as store:
        chat = store.create_chat("A long chat")
        reply: int | None = None
        for turn in range(TURNS):
            prompt = store.add_message(chat.id, "user", f"Question-{turn}", parent=reply)
            reply = store.add_message(chat.id, "assistant", "", parent=prompt)
            text, tokens = "", 0
            lines: list[str] = []
            while tokens < TOKENS // TURNS:
                record = replace(next(rounds), request_id=f"turn-{turn}", number=len(lines))
                text, tokens = text + record.text, tokens + len(record.emitted)
                lines.append(to_json(record))
            lines.append(to_json(Finished(f"turn-{turn}", FinishReason.EOS, "", "", 0.0)))
            store.append_rounds(reply, message_parts(text), lines)
            store.finish_message(reply, FinishReason.EOS.value)


def resident(terminal: Terminal) -> float:
    """Megabytes of the app in memory."""
    return float(psutil.Process(terminal.pid).memory_info().rss) / 1e6


def page_s(terminal: Terminal) -> float:
    """Seconds from the key to the end of what it makes the app write."""
    absorb(terminal, 0.05)
    start = last = time.perf_counter()
    terminal.type(PAGE_UP)
    while time.perf_counter() - last < QUIET_S:
        if terminal.read(QUIET_S):
            last = time.perf_counter()
    return last - start
