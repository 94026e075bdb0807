"""The default model's tokens per second with the interface on, and without it: both from the rounds' own times."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.interface.running import PROGRAM, QUIT, SIZE, Row, absorb, say, specchat
from specchat.app.storage.store import Store, StoredMessage
from specchat.engine import Admitted, Metrics, Round, from_json, models_folder
from tests.terminal import Terminal

PROMPT = "Write a long story about a lighthouse keeper and the sea."
TOKENS = 200
SETUPS: dict[str, tuple[str, ...]] = {"none": ("--drafter", "none"), "the default": ()}


def throughput(pairs: int) -> Iterator[Row]:
    """Measure with and without, alternating, so that other work of the machine affects both."""
    for name, setup in SETUPS.items():
        options = (*setup, "--max-tokens", str(TOKENS))
        rates = [(with_interface(options), headless(options)) for _ in range(pairs)]
        on, off = (median(column) for column in zip(*rates, strict=True))
        change = median(one / other for one, other in rates) - 1
        yield f"{name}, interface on / headless", f"{on:6.1f} / {off:.1f} tokens/s, {change:+.1%} pair by pair"


def headless(options: tuple[str, ...]) -> float:
    """Tokens per second of `specchat ask`."""
    return float(specchat("ask", *options, PROMPT)["tokens_per_second"])


def last_message(home: Path) -> StoredMessage:
    """The newest message of the newest chat."""
    with Store(home / "data" / "specchat.db") as store:
        return store.messages(store.chats()[0].id)[-1]


def with_interface(options: tuple[str, ...]) -> float:
    """Tokens per second of the same question in a chat, from the rounds that were stored."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").symlink_to(models_folder())
        with Terminal(sys.executable, *PROGRAM, *options, SPECCHAT_HOME=str(home), **SIZE) as terminal:
            terminal.wait_for("ready: ask anything", 300)
            say(terminal, PROMPT)
            absorb(terminal, 1.0)
            while not (reply := last_message(home)).finish_reason:  # to draw it here would take from the engine
                absorb(terminal, 2.0)  # to look takes from it too
            terminal.leave(QUIT)
    statistics = Metrics()
    for record in map(from_json, reply.events):
        if isinstance(record, Admitted | Round):
            statistics.add(record)
    assert statistics.tokens_per_second is not None
    return statistics.tokens_per_second
