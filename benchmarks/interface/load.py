"""What the app costs while replies come, and how soon a key is seen."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

from benchmarks.interface.running import NEW_CHAT, QUIT, RATE, Row, absorb, figures, paced_app, say
from tests.terminal import Terminal

LANES = 4
BY_ROUND = "\x06"  # ctrl+f
MARKDOWN = "\x14"  # ctrl+t
LETTERS = [chr(code) for code in range(0x410, 0x450)] + [chr(code) for code in range(0x531, 0x557)]
"""Cyrillic and Armenian: no recorded reply has any, so one that is on its way to the screen was typed."""


def four_chats(terminal: Terminal) -> None:
    """One chat is on screen, the rounds of all four are."""
    for number in range(LANES):
        if number:
            terminal.type(NEW_CHAT)
            terminal.wait_for("new chat")
        say(terminal, f"Question-{number}")
        terminal.wait_for("answering")


def four_candidates(terminal: Terminal) -> None:
    """All four replies are on screen."""
    say(terminal, f"/candidates {LANES} Question")
    terminal.wait_for("go on with 4")


def one_chat(terminal: Terminal) -> None:
    """All tokens are on screen."""
    say(terminal, "Question")
    terminal.wait_for("answering")


def one_chat_by_round(terminal: Terminal) -> None:
    """One round per line: the screen scrolls with every round."""
    one_chat(terminal)
    terminal.type(BY_ROUND)


def one_chat_as_markdown(terminal: Terminal) -> None:
    """A growing reply as Markdown."""
    one_chat(terminal)
    terminal.type(MARKDOWN)


SCENES: dict[str, Callable[[Terminal], None]] = {
    "4 chats at once": four_chats,
    "4 candidates": four_candidates,
    "1 chat": one_chat,
    "1 chat, Figure 1 view": one_chat_by_round,
}


def processor(seconds: float) -> Iterator[Row]:
    """Processor time of the whole app per second of 30 frames, with `RATE` tokens a second in all."""
    for name, begin in SCENES.items():
        share, frames = _share(begin, seconds)
        yield f"{name}, {RATE:g} tokens/s", f"{share:5.1%} of a core at 30 frames/s (drawn here: {frames:.0f})"


def markdown(pairs: int, seconds: float) -> Iterator[Row]:
    """Markdown that grows, against the same reply token by token, alternating."""
    taken = [(_share(one_chat_as_markdown, seconds)[0], _share(one_chat, seconds)[0]) for _ in range(pairs)]
    ratios = [live / tokens for live, tokens in taken]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {pairs} pairs"
    yield "Markdown / tokens, processor time", f"{median(ratios):.2f} times ({spread})"


def _share(begin: Callable[[Terminal], None], seconds: float) -> tuple[float, float]:
    """Share of a core at the full frame rate, in one scene; and the frames that were drawn a second."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with paced_app(home) as terminal:
            begin(terminal)
            absorb(terminal, 2 + seconds)
            terminal.leave(QUIT)
        return figures(home)["share"], figures(home)["frames_per_second"]


def keys(count: int) -> Iterator[Row]:
    """Seconds from writing a key to the terminal to reading its letter from it."""
    with tempfile.TemporaryDirectory() as folder, paced_app(Path(folder)) as terminal:
        four_chats(terminal)
        waits = [_echo_s(terminal, LETTERS[number % len(LETTERS)], number) * 1e3 for number in range(count)]
        terminal.leave(QUIT)
    p95 = quantiles(waits, n=20)[-1]
    yield "key press to screen", f"{p95:6.1f} ms at the 95th percentile, median {median(waits):.1f}, {count} keys"


def _echo_s(terminal: Terminal, letter: str, number: int) -> float:
    if number and not number % len(LETTERS):  # every letter has been typed: begin again with an empty line
        terminal.type("\x15")
        absorb(terminal, 0.5)
    absorb(terminal, random.uniform(0.05, 0.15))
    sign, written = letter.encode(), b""
    start = time.perf_counter()
    terminal.type(letter)
    while sign not in written:
        assert time.perf_counter() - start < 10, f"{letter} is not on screen"
        written += terminal.read(1.0)
    return time.perf_counter() - start
