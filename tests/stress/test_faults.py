"""What a machine does to a program: full and read-only disks, signals, a lost terminal, a clock that goes back.

Each is survived, and the reply up to then is stored. So is another specchat on the same home.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.interface.running import QUIT
from specchat.app.errors import StoreError
from specchat.app.settings.settings_file import load_settings
from tests.stress.numbered import word
from tests.stress.session import ask, ask_each, draw_for, lost, shown_round, start, stored_messages
from tests.terminal import Terminal
from tests.waiting import until

PROMPT = "Question-0"
ROUNDS = 60
IGNORING_HUP = ("bash", "-c", 'trap "" HUP; setsid --wait "$@"', "bash")
"""Runs a program that is not told of the end of its terminal, as one that does not own it."""

pytestmark = pytest.mark.slow


def can_mount() -> bool:
    """Whether this user may mount file systems here."""
    if os.geteuid():
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs to mount a small file system")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals(number: int, tmp_path: Path, dice: random.Random) -> None:
    with start(tmp_path) as terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 1))
        terminal.signal(number)
        code = terminal.end()
    survived(tmp_path, terminal, code, 128 + number)


@pytest.mark.parametrize("before", [(), IGNORING_HUP], ids=["told", "not told"])
def test_the_terminal_is_closed(before: tuple[str, ...], tmp_path: Path, dice: random.Random) -> None:
    with start(tmp_path, before=before) as terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 1))
        shown = shown_round(terminal)
        code = terminal.hang_up()
    assert code == 128 + signal.SIGHUP
    assert lost(tmp_path, [PROMPT], shown) == []


def test_suspended_and_continued(tmp_path: Path, dice: random.Random) -> None:
    with start(tmp_path) as terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 0.5))
        terminal.signal(signal.SIGTSTP)
        process = psutil.Process(terminal.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        draw_for(terminal, 0.2)
        assert terminal.written.rfind(b"\x1b[?1049l") > terminal.written.rfind(b"\x1b[?1049h"), "not given back"
        before = shown_round(terminal)
        time.sleep(dice.uniform(0, 1))
        terminal.signal(signal.SIGCONT)
        terminal.wait(lambda _: shown_round(terminal) > before + 5, 30, "the next rounds")
        code = terminal.leave(QUIT)
    survived(tmp_path, terminal, code)


def test_the_clock_goes_back_with_every_look(tmp_path: Path, dice: random.Random) -> None:
    names = [PROMPT, "Question-1", "Question-2"]
    with start(tmp_path, "--clock-back", dice.choice((0.001, 60, 3600, 1e8)), "--rounds", 30) as terminal:
        ask_each(terminal, names, until="copy")
        assert terminal.leave(QUIT) == 0
    assert lost(tmp_path, names, 29, all_shown=True) == []


def test_no_file_may_grow(tmp_path: Path, dice: random.Random) -> None:
    fills_up(tmp_path, before=("bash", "-c", f'ulimit -f {dice.randrange(40, 400)}; exec "$@"', "bash"))


@needs_mount
def test_a_full_disk(tmp_path: Path, dice: random.Random) -> None:
    with mounted(tmp_path, f"size={dice.randrange(24, 400) * 4}k"):
        fills_up(tmp_path)


@needs_mount
def test_nothing_can_be_written_and_there_is_nothing_yet(tmp_path: Path) -> None:
    with mounted(tmp_path, "ro"):
        chats_without_store(tmp_path)


@needs_mount
def test_nothing_can_be_written_and_there_are_chats(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=8m"):
        with start(tmp_path, "--rounds", 20) as terminal:
            ask(terminal, PROMPT)
            terminal.wait_for("copy")
            terminal.leave(QUIT)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        chats_without_store(tmp_path)
        subprocess.run(["mount", "-o", "remount,rw", tmp_path], check=True)
        assert lost(tmp_path, [PROMPT], 19) == []


def test_two_on_one_home(tmp_path: Path) -> None:
    """Two chats in each, all four of them answering; each keeps another setting."""
    with start(tmp_path, "--rounds", ROUNDS) as one, start(tmp_path, "--rounds", ROUNDS) as other:
        for terminal, name in ((one, "one"), (other, "other")):
            ask_each(terminal, [f"{name}-first", f"{name}-second"])
        one.type("/temp 0.5\r")
        other.type("/gamma 3\r")
        for terminal in (one, other):
            terminal.wait_for(word(ROUNDS - 1).strip())
            terminal.wait_for("copy")
        assert (one.leave(QUIT), other.leave(QUIT)) == (0, 0)
    names = ["other-second", "other-first", "one-second", "one-first"]
    assert lost(tmp_path, names, ROUNDS - 1, all_shown=True) == []
    settings, notice = load_settings(tmp_path / "config" / "settings.toml")
    assert (settings.temperature, settings.gamma, notice) == (0.5, 3, None)


def test_one_of_two_is_killed(tmp_path: Path, dice: random.Random) -> None:
    with start(tmp_path) as one, start(tmp_path, "--rounds", ROUNDS) as other:
        ask(one, "killed")
        ask(other, "survives")
        draw_for(one, dice.uniform(0, 1))
        one.kill()
        other.wait_for("copy")
        assert other.leave(QUIT) == 0
    assert lost(tmp_path, ["killed", "survives"], shown_round(one)) == []


def survived(home: Path, terminal: Terminal, code: int | None, expected: int = 0) -> None:
    """Check how the app ended, and that everything it showed is stored."""
    assert b"Traceback" not in terminal.written
    assert code == expected
    assert lost(home, [PROMPT], shown_round(terminal)) == []


def fills_up(home: Path, before: tuple[object, ...] = ()) -> None:
    """Chat until nothing more can be stored, which is told."""
    with start(home, "--rate", 200, before=before) as terminal:
        terminal.type(PROMPT + "\r")
        told = False

        def far_enough(_: Terminal) -> bool:
            nonlocal told
            told = told or "not stored" in terminal.words
            return shown_round(terminal) >= 400

        terminal.wait(far_enough, 60, "round 400")
        assert terminal.leave(QUIT) == 0
    assert b"Traceback" not in terminal.written
    try:
        chats = stored_messages(home)
    except StoreError:
        return  # not even the empty database fits on the disk, which was said at the start
    if chats:
        assert len(chats[0]) == 1 or lost(home, [PROMPT], -1) == []
        assert told or sum(len(message.events) for message in chats[0]) >= 400, "nothing said about the disk"


def chats_without_store(home: Path) -> None:
    """Chat where nothing can be stored, which is told."""
    with start(home, "--rounds", 20) as terminal:
        ask(terminal, "not kept")
        terminal.wait_for("copy")
        terminal.type("/temp 0.5\r")
        terminal.wait_quiet()
        assert terminal.leave(QUIT) == 0
    said = bytes(terminal.written).decode("utf-8", "replace")
    assert "Traceback" not in said
    assert "stored" in said


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a small file system over a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
