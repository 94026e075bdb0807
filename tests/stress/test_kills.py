"""kill -9 at random moments of a reply: every chat is there afterwards, with every round that was on screen."""

import random
from pathlib import Path

import pytest

from tests.stress.session import ask, ask_each, draw_for, lost, shown_round, start
from tests.terminal import Terminal, TerminalSize

STEP = "\x1b[18~"
NARROW: TerminalSize = {"columns": 80, "rows": 24}
WIDE: TerminalSize = {"columns": 140, "rows": 40}


def test_a_reply_killed(tmp_path: Path, dice: random.Random) -> None:
    """A reply of 40 rounds a second."""
    with start(tmp_path, **NARROW) as terminal:
        ask(terminal, "Question-0")
        assert_kept_when_killed(terminal, tmp_path, dice, ["Question-0"])


@pytest.mark.slow
def test_four_chats_killed(tmp_path: Path, dice: random.Random) -> None:
    """Four chats that answer at once; the last one is on screen."""
    names = [f"Question-{number}" for number in range(4)]
    with start(tmp_path, **NARROW) as terminal:
        ask_each(terminal, names)
        assert_kept_when_killed(terminal, tmp_path, dice, names[::-1])


@pytest.mark.slow
def test_four_candidates_killed(tmp_path: Path, dice: random.Random) -> None:
    """Four replies to one prompt, all of them on screen."""
    with start(tmp_path, SPECCHAT_TEMPERATURE="0.8", **WIDE) as terminal:
        ask(terminal, "/candidates 4 Question-0")
        assert_kept_when_killed(terminal, tmp_path, dice, ["Question-0"], replies=4)


def assert_kept_when_killed(
    terminal: Terminal, home: Path, dice: random.Random, prompts: list[str], replies: int = 1
) -> None:
    """Kill it within its replies."""
    draw_for(terminal, dice.uniform(0, 1.5))
    terminal.kill()
    assert lost(home, prompts, shown_round(terminal), replies) == []


def test_stepped_rounds_killed(tmp_path: Path, dice: random.Random) -> None:
    """Rounds that are stepped through, part by part; a round counts as shown with its last part."""
    with start(tmp_path, **NARROW) as terminal:
        ask(terminal, "Question-0")
        for _ in range(dice.randrange(4, 25)):
            terminal.type(STEP)
            terminal.wait_quiet(dice.uniform(0.01, 0.08), 0.5)
        terminal.kill()
        assert lost(tmp_path, ["Question-0"], shown_round(terminal)) == []
