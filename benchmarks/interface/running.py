"""The app in a terminal, and what it costs while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.terminal import Terminal, TerminalSize

FIGURES = "figures.json"
RATE = 200.0
SIZE: TerminalSize = {"columns": 140, "rows": 40}
ENTER, NEW_CHAT, QUIT = "\r", "\x0e", "\x11"
Row = tuple[str, str]
"""A row of the table: what was measured, and its figure."""
PROGRAM = ("-c", "from specchat.app.cli.main import main; main()")
"""specchat as this checkout has it."""


@contextmanager
def paced_app(home: Path) -> Iterator[Terminal]:
    """The app with replies at `RATE` tokens per second in all, ready to be asked."""
    with Terminal(
        sys.executable, "-m", "benchmarks.interface.paced", RATE, home / FIGURES, SPECCHAT_HOME=str(home), **SIZE
    ) as terminal:
        terminal.wait_for("Ask anything")
        terminal.wait_for("smollm2-135m ◂ ngram")
        yield terminal


def figures(home: Path) -> dict[str, float]:
    """What the app that was left last measured of itself (`benchmarks.interface.paced`)."""
    found: dict[str, float] = json.loads((home / FIGURES).read_text(encoding="utf-8"))
    return found


def say(terminal: Terminal, text: str) -> None:
    """Type a line and send it."""
    terminal.type(text)
    terminal.wait_for(text.split()[-1])
    terminal.type(ENTER)


def absorb(terminal: Terminal, seconds: float) -> int:
    """Let the app write for this long; the bytes it wrote."""
    end, size = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        size += len(terminal.read(left))
    return size


def specchat(*words: str) -> Any:
    """What a command of this checkout prints as JSON."""
    command = [sys.executable, *PROGRAM, *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


def load_of_machine() -> str:
    """What else the machine was doing."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
