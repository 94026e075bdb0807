"""Two specchat on one home at once: both work, and everything that both were told is there."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.interface.running import NEW_CHAT, QUIT
from specchat.app.settings.settings_file import load_settings
from tests.stress.numbered import word
from tests.stress.session import ask, draw_for, lost, shown_round, start
from tests.stress.table import Row

ROUNDS = 60


def sharing(count: int) -> Iterator[Row]:
    """Both answer to their end, or one of them is killed while the other goes on."""
    for scene in (both_to_the_end, one_is_killed):
        row = Row(f"two at once: {scene.__name__.replace('_', ' ')}")
        for number in range(max(count // 2, 1)):
            with tempfile.TemporaryDirectory() as home:
                try:
                    row.add(*scene(Path(home), random.Random(number)))
                except AssertionError as error:
                    row.add(str(error))
        yield row


def both_to_the_end(home: Path, dice: random.Random) -> list[str]:  # noqa: ARG001
    """Two chats in each, all four of them answering; each keeps another setting."""
    with start(home, "--rounds", ROUNDS) as one, start(home, "--rounds", ROUNDS) as other:
        for terminal, name in ((one, "one"), (other, "other")):
            ask(terminal, f"{name}-first")
            terminal.type(NEW_CHAT)
            terminal.wait_for("new chat")
            ask(terminal, f"{name}-second")
        one.type("/temp 0.5\r")
        other.type("/gamma 3\r")
        for terminal in (one, other):
            terminal.wait_for(word(ROUNDS - 1).strip())
            terminal.wait_for("complete")
        codes = one.leave(QUIT), other.leave(QUIT)
    settings, notice = load_settings(home / "config" / "settings.toml")
    wrong = lost(home, ["other-second", "other-first", "one-second", "one-first"], ROUNDS - 1, all_shown=True)
    wrong += [] if codes == (0, 0) else [f"exit codes {codes}"]
    return wrong + ([] if (settings.temperature, settings.gamma, notice) == (0.5, 3, None) else [f"kept {settings}"])


def one_is_killed(home: Path, dice: random.Random) -> list[str]:
    """The other does not notice."""
    with start(home) as one, start(home, "--rounds", ROUNDS) as other:
        ask(one, "killed")
        ask(other, "survives")
        draw_for(one, dice.uniform(0, 1))
        one.kill()
        other.wait_for("complete")
        code = other.leave(QUIT)
    wrong = lost(home, ["killed", "survives"], shown_round(one))
    return wrong + ([] if code == 0 else [f"exit code {code}"])
