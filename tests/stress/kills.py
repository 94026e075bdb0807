"""kill -9 at random moments of a reply: every chat is there afterwards, with every round that was on screen."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.interface.running import ENTER, NEW_CHAT, PROGRAM
from specchat.app.ui.notices import NOTICE_S
from specchat.engine import models_folder
from tests.stress.session import ask, draw_for, lost, shown_round, start, stored_messages
from tests.stress.table import Row
from tests.terminal import Terminal, TerminalSize

STEP = "\x1b[18~"
NARROW: TerminalSize = {"columns": 80, "rows": 24}
WIDE: TerminalSize = {"columns": 140, "rows": 40}
Scene = Callable[[Path, random.Random], list[str]]

_BAR = str.maketrans("", "", "▁▂▃▄▅▆▇█▔▕")
"""Takes the scroll bar's signs off the lines of a screen."""


def kills(count: int, seed: int = 0) -> Iterator[Row]:
    """A row for each scene; `count` kills in all."""
    shares: dict[Scene, float] = {
        one_chat: 0.35,
        four_chats: 0.2,
        four_candidates: 0.2,
        stepping: 0.15,
        real_model: 0.1,
    }
    for scene, share in shares.items():
        row = Row(f"kill -9: {scene.__name__.replace('_', ' ')}")
        for number in range(max(round(count * share), 1)):
            with tempfile.TemporaryDirectory() as home:
                try:
                    row.add(*scene(Path(home), random.Random(f"{seed} {scene.__name__} {number}")))
                except AssertionError as error:
                    row.add(str(error))
        yield row


def one_chat(home: Path, dice: random.Random) -> list[str]:
    """A reply of 40 rounds a second."""
    with start(home, **NARROW) as terminal:
        ask(terminal, "Question-0")
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        return lost(home, ["Question-0"], shown_round(terminal))


def four_chats(home: Path, dice: random.Random) -> list[str]:
    """Four chats that answer at once; the last one is on screen."""
    names = [f"Question-{number}" for number in range(4)]
    with start(home, **NARROW) as terminal:
        for number, name in enumerate(names):
            if number:
                terminal.type(NEW_CHAT)
                terminal.wait_for("new chat")
            ask(terminal, name)
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        return lost(home, names[::-1], shown_round(terminal))


def four_candidates(home: Path, dice: random.Random) -> list[str]:
    """Four replies to one prompt, all of them on screen."""
    with start(home, SPECCHAT_TEMPERATURE="0.8", **WIDE) as terminal:
        ask(terminal, "/candidates 4 Question-0")
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        return lost(home, ["Question-0"], shown_round(terminal), replies=4)


def stepping(home: Path, dice: random.Random) -> list[str]:
    """Rounds that are stepped through, part by part; a round counts as shown with its last part."""
    with start(home, **NARROW) as terminal:
        ask(terminal, "Question-0")
        for _ in range(dice.randrange(4, 25)):
            terminal.type(STEP)
            terminal.wait_quiet(dice.uniform(0.01, 0.08), 0.5)
        terminal.kill()
        return lost(home, ["Question-0"], shown_round(terminal))


def real_model(home: Path, dice: random.Random) -> list[str]:
    """The default model; what stands on the screen of its reply must be in the stored one."""
    question = "Write a very long story about a lighthouse keeper."
    (home / "models").symlink_to(models_folder())
    program = (sys.executable, *PROGRAM, "--max-tokens", 2000, "--seed", dice.randrange(1000), "--temperature", 0.7)
    with Terminal(*program, SPECCHAT_HOME=str(home), SPECCHAT_REJECTED="hide", **NARROW) as terminal:
        terminal.wait_for("ready: ask anything", 300)
        draw_for(terminal, NOTICE_S + 1)  # what is said at the start lies over the lines of the reply
        terminal.type(question)
        terminal.wait_for(question)
        terminal.type(ENTER)
        terminal.wait(lambda t: "tok/s" in t.text, 120, "reply")
        draw_for(terminal, dice.uniform(0, 6))
        terminal.kill()
    wrong = lost(home, [question], -1)
    shown = " ".join(_reply_lines(terminal, question)).split()
    stored = " ".join(stored_messages(home)[0][1].content.split())
    if wrong or " ".join(shown) in stored:
        return wrong
    first = next(n for n in range(len(shown), -1, -1) if " ".join(shown[:n]) in stored)
    return [f"on screen and not stored: {' '.join(shown[first:])!r}"]


def _reply_lines(terminal: Terminal, question: str) -> list[str]:
    """The lines of the reply that are on the screen, without what stands above and below it."""
    shown = terminal.text.splitlines()
    first = max((number for number, line in enumerate(shown) if question in line and "▌" in line), default=2)
    last = next((number for number, line in enumerate(shown) if "tok/s" in line), first)
    lines = [line.translate(_BAR).strip() for line in shown[first + 1 : last] if line.startswith("    ")]
    return [line.strip("▌") for line in lines if line]
