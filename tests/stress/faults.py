"""What a machine does to a program: full and read-only disks, signals, a lost terminal, a clock that goes back.

Each is survived, and the reply up to then is stored.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.interface.running import NEW_CHAT, QUIT
from specchat.app.errors import StoreError
from tests.stress.session import ask, draw_for, lost, shown_round, start, stored_messages
from tests.stress.table import Row
from tests.terminal import Terminal

PROMPT = "Question-0"
Scene = Callable[[Path, random.Random], list[str]]


def faults(count: int, seed: int = 0) -> Iterator[Row]:
    """A row for each fault, `count` tries of each. Those that need to mount a file system are left out without root."""
    mounted = (full_disk, read_only_home, read_only_chats) if can_mount() else ()
    for scene in (
        terminated, hung_up, terminal_gone, terminal_gone_unnoticed, suspended, resized, clock_backwards,
        file_size_limit, *mounted,
    ):  # fmt: skip
        row = Row(f"fault: {scene.__name__.replace('_', ' ')}")
        for number in range(count):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row.add(*scene(Path(folder), random.Random(f"{seed} {scene.__name__} {number}")))
                except AssertionError as error:
                    row.add(str(error))
        yield row


# Endings


def terminated(home: Path, dice: random.Random) -> list[str]:
    """SIGTERM: what `kill`, a service manager and a shutdown send."""
    return _ended_by(signal.SIGTERM, home, dice)


def hung_up(home: Path, dice: random.Random) -> list[str]:
    """SIGHUP with the terminal still there."""
    return _ended_by(signal.SIGHUP, home, dice)


def terminal_gone(home: Path, dice: random.Random) -> list[str]:
    """The window is closed: the system sends SIGHUP, and nothing can be written any more."""
    return _gone(start(home), home, dice)


def terminal_gone_unnoticed(home: Path, dice: random.Random) -> list[str]:
    """The same without a signal, as for a program that does not own its terminal."""
    return _gone(start(home, before=("bash", "-c", 'trap "" HUP; setsid --wait "$@"', "bash")), home, dice)


def _ended_by(number: int, home: Path, dice: random.Random) -> list[str]:
    with start(home) as terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 1))
        terminal.signal(number)
        code = terminal.end()
    wrong = lost(home, [PROMPT], shown_round(terminal))
    wrong += [] if code == 128 + number else [f"exit code {code}"]
    return wrong + (["traceback"] if b"Traceback" in terminal.written else [])


def _gone(terminal: Terminal, home: Path, dice: random.Random) -> list[str]:
    with terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 1))
        shown = shown_round(terminal)
        code = terminal.hang_up()
    wrong = lost(home, [PROMPT], shown)
    return wrong + ([] if code == 128 + signal.SIGHUP else [f"exit code {code}"])


# Interruptions


def suspended(home: Path, dice: random.Random) -> list[str]:
    """SIGTSTP, then SIGCONT: the app gives the terminal back, and goes on where it was."""
    with start(home) as terminal:
        ask(terminal, PROMPT)
        draw_for(terminal, dice.uniform(0, 0.5))
        terminal.signal(signal.SIGTSTP)
        process = psutil.Process(terminal.pid)
        _until(lambda: process.status() == psutil.STATUS_STOPPED, "suspended")
        draw_for(terminal, 0.2)
        given_back = bytes(terminal.written).rfind(b"\x1b[?1049l") > bytes(terminal.written).rfind(b"\x1b[?1049h")
        before = shown_round(terminal)
        time.sleep(dice.uniform(0, 1))
        terminal.signal(signal.SIGCONT)
        terminal.wait(lambda _: shown_round(terminal) > before + 5, 30, "the next rounds")
        code = terminal.leave(QUIT)
    wrong = lost(home, [PROMPT], shown_round(terminal))
    wrong += [] if given_back else ["the terminal was not given back"]
    return wrong + ([] if code == 0 else [f"exit code {code}"])


def resized(home: Path, dice: random.Random, times: int = 200) -> list[str]:
    """Another size, 200 times, from one cell to a wall of them."""
    with start(home) as terminal:
        ask(terminal, PROMPT)
        for _ in range(times):
            terminal.resize(
                dice.choice((1, 20, 47, 80, 100, 128, 140, 300)), dice.choice((1, 5, 11, 12, 24, 30, 40, 90))
            )
            draw_for(terminal, dice.uniform(0, 0.05))
        terminal.resize(140, 40)
        before = shown_round(terminal)
        terminal.wait(lambda _: shown_round(terminal) > before + 5, 30, "the next rounds")
        code = terminal.leave(QUIT)
    return lost(home, [PROMPT], shown_round(terminal)) + ([] if code == 0 else [f"exit code {code}"])


def clock_backwards(home: Path, dice: random.Random) -> list[str]:
    """Every look at the time of day is an hour before the last one."""
    names = [PROMPT, "Question-1", "Question-2"]
    with start(home, "--clock-back", dice.choice((0.001, 60, 3600, 1e8)), "--rounds", 30) as terminal:
        for number, name in enumerate(names):
            if number:
                terminal.type(NEW_CHAT)
                terminal.wait_for("new chat")
            ask(terminal, name)
            terminal.wait_for("complete")
        code = terminal.leave(QUIT)
    return lost(home, names, 29, all_shown=True) + ([] if code == 0 else [f"exit code {code}"])


# Disks


def file_size_limit(home: Path, dice: random.Random) -> list[str]:
    """No file may grow beyond a size that the chats reach: writes fail from some moment on."""
    limit = ("bash", "-c", f'ulimit -f {dice.randrange(40, 400)}; exec "$@"', "bash")
    return _until_full(home, before=limit)


def full_disk(home: Path, dice: random.Random) -> list[str]:
    """A disk of a random small size, so that it is full at another write each time."""
    with _mounted(home, f"size={dice.randrange(24, 400) * 4}k"):
        return _until_full(home)


def _until_full(home: Path, before: tuple[object, ...] = ()) -> list[str]:
    with start(home, "--rate", 200, before=before) as terminal:
        terminal.type(PROMPT + "\r")
        told = False

        def far_enough(_: Terminal) -> bool:
            nonlocal told
            told = told or "not stored" in terminal.words
            return shown_round(terminal) >= 400

        terminal.wait(far_enough, 60, "round 400")
        code = terminal.leave(QUIT)
    wrong = [] if code == 0 else [f"exit code {code}"]
    wrong += ["traceback"] if b"Traceback" in terminal.written else []
    try:
        chats = stored_messages(home)
    except StoreError:
        return wrong  # not even the empty database fits on the disk, which was said at the start
    if chats:
        rounds = [line for message in chats[0] for line in message.events]
        wrong += lost(home, [PROMPT], -1) if len(chats[0]) > 1 else []
        wrong += ["nothing said about the disk"] if len(rounds) < 400 and not told else []
    return wrong


def read_only_home(home: Path, dice: random.Random) -> list[str]:  # noqa: ARG001
    """Nothing can be written, and there is nothing yet."""
    with _mounted(home, "ro"):
        return _chatting_without_store(home)


def read_only_chats(home: Path, dice: random.Random) -> list[str]:  # noqa: ARG001
    """Nothing can be written, and there are chats and settings."""
    with _mounted(home, "size=8m"):
        with start(home, "--rounds", 20) as terminal:
            ask(terminal, PROMPT)
            terminal.wait_for("complete")
            terminal.leave(QUIT)
        subprocess.run(["mount", "-o", "remount,ro", home], check=True)
        wrong = _chatting_without_store(home)
        subprocess.run(["mount", "-o", "remount,rw", home], check=True)
        return wrong + lost(home, [PROMPT], 19)


def _chatting_without_store(home: Path) -> list[str]:
    with start(home, "--rounds", 20) as terminal:
        ask(terminal, "not kept")
        terminal.wait_for("complete")
        terminal.type("/temp 0.5\r")
        terminal.wait_quiet()
        code = terminal.leave(QUIT)
    said = bytes(terminal.written).decode("utf-8", "replace")
    wrong = [] if code == 0 else [f"exit code {code}"]
    wrong += ["traceback"] if "Traceback" in said else []
    return wrong + ([] if "stored" in said else ["nothing said about the disk"])


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def can_mount() -> bool:
    """Whether this user may mount file systems here."""
    if os.geteuid():
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0


def _until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not {what} after {seconds:g} s"
        time.sleep(0.02)
