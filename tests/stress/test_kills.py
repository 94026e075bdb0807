"""kill -9 at random moments of a reply: every chat is there afterwards, with every round that was on screen."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from benchmarks.interface.running import ENTER, NEW_CHAT, PROGRAM
from specchat.app.storage.store import Store
from specchat.app.ui.notices import NOTICE_S
from specchat.engine import models_folder, to_json
from tests.stress.numbered import numbered, word
from tests.stress.session import ask, draw_for, lost, shown_round, start, stored_messages
from tests.terminal import Terminal, TerminalSize

STEP = "\x1b[18~"
NARROW: TerminalSize = {"columns": 80, "rows": 24}
WIDE: TerminalSize = {"columns": 140, "rows": 40}

_BAR = str.maketrans("", "", "▁▂▃▄▅▆▇█▔▕")
"""Takes the scroll bar's signs off the lines of a screen."""


def test_a_reply_killed(tmp_path: Path, dice: random.Random) -> None:
    """A reply of 40 rounds a second."""
    with start(tmp_path, **NARROW) as terminal:
        ask(terminal, "Question-0")
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        assert lost(tmp_path, ["Question-0"], shown_round(terminal)) == []


@pytest.mark.slow
def test_four_chats_killed(tmp_path: Path, dice: random.Random) -> None:
    """Four chats that answer at once; the last one is on screen."""
    names = [f"Question-{number}" for number in range(4)]
    with start(tmp_path, **NARROW) as terminal:
        for number, name in enumerate(names):
            if number:
                terminal.type(NEW_CHAT)
                terminal.wait_for("new chat")
            ask(terminal, name)
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        assert lost(tmp_path, names[::-1], shown_round(terminal)) == []


@pytest.mark.slow
def test_four_candidates_killed(tmp_path: Path, dice: random.Random) -> None:
    """Four replies to one prompt, all of them on screen."""
    with start(tmp_path, SPECCHAT_TEMPERATURE="0.8", **WIDE) as terminal:
        ask(terminal, "/candidates 4 Question-0")
        draw_for(terminal, dice.uniform(0, 1.5))
        terminal.kill()
        assert lost(tmp_path, ["Question-0"], shown_round(terminal), replies=4) == []


def test_stepped_rounds_killed(tmp_path: Path, dice: random.Random) -> None:
    """Rounds that are stepped through, part by part; a round counts as shown with its last part."""
    with start(tmp_path, **NARROW) as terminal:
        ask(terminal, "Question-0")
        for _ in range(dice.randrange(4, 25)):
            terminal.type(STEP)
            terminal.wait_quiet(dice.uniform(0.01, 0.08), 0.5)
        terminal.kill()
        assert lost(tmp_path, ["Question-0"], shown_round(terminal)) == []


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_killed(tmp_path: Path, dice: random.Random) -> None:
    """The default model; what stands on the screen of its reply must be in the stored one."""
    question = "Write a very long story about a lighthouse keeper."
    (tmp_path / "models").symlink_to(models_folder())
    program = (sys.executable, *PROGRAM, "--max-tokens", 2000, "--seed", dice.randrange(1000), "--temperature", 0.7)
    with Terminal(*program, SPECCHAT_HOME=str(tmp_path), SPECCHAT_REJECTED="hide", **NARROW) as terminal:
        terminal.wait_for("ready: ask anything", 300)
        draw_for(terminal, NOTICE_S + 1)  # what is said at the start lies over the lines of the reply
        terminal.type(question)
        terminal.wait_for(question)
        terminal.type(ENTER)
        terminal.wait(lambda t: "tok/s" in t.text, 120, "reply")
        draw_for(terminal, dice.uniform(0, 6))
        terminal.kill()
    assert lost(tmp_path, [question], -1) == []
    shown = " ".join(_reply_lines(terminal, question)).split()
    stored = " ".join(stored_messages(tmp_path)[0][1].content.split())
    assert " ".join(shown) in stored


def _reply_lines(terminal: Terminal, question: str) -> list[str]:
    """The lines of the reply that are on the screen, without what stands above and below it."""
    shown = terminal.text.splitlines()
    first = max((number for number, line in enumerate(shown) if question in line and "▌" in line), default=2)
    last = next((number for number, line in enumerate(shown) if "tok/s" in line), first)
    lines = [line.translate(_BAR).strip() for line in shown[first + 1 : last] if line.startswith("    ")]
    return [line.strip("▌") for line in lines if line]


def test_a_loss_would_be_seen(tmp_path: Path) -> None:
    with Store(tmp_path / "data" / "specchat.db") as store:
        chat = store.create_chat("Question-0")
        prompt = store.add_message(chat.id, "user", "Question-0")
        reply = store.add_message(chat.id, "assistant", "", parent=prompt)
        for number in (0, 1):
            store.append_rounds(reply, f"and {word(number)}", [to_json(numbered("r", number, 1, 0.0, word(number)))])
        assert lost(tmp_path, ["Question-0"], 1) == []
        assert lost(tmp_path, ["Question-0"], 2) == ["round 2 was on screen, round 1 is the last that is stored"]
        assert lost(tmp_path, ["Question-0", "Question-1"], 1) != []
        store.append_rounds(reply, f"and {word(3)}", [to_json(numbered("r", 3, 1, 0.0, word(3)))])
        assert lost(tmp_path, ["Question-0"], 1) == ["0-1, 3-3 of 3 stored rounds do not make the stored text"]
