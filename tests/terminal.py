"""A program in a pseudo-terminal, and what a person would see of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

import pexpect
import pyte

from tests.waiting import PATIENCE_S

_ASKS_FOR_FRAMES, _HAS_FRAMES = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
_FRAME_BEGINS, _FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"


class TerminalSize(TypedDict):
    """Keyword arguments of `Terminal`."""

    columns: int
    rows: int


class Terminal:
    """Runs a program and draws what it writes, as a terminal of this size does.

    Like most terminals of today it knows synchronized output (private mode 2026): what is between the two marks
    of a frame appears at once or, when the program is killed in between, never.
    """

    def __init__(
        self, *command: object, columns: int = 140, rows: int = 40, cwd: Path | None = None, **environment: str
    ) -> None:
        self.written = bytearray()
        """Every byte that the program has written."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._frame = b""
        """What has arrived of a frame that has not ended."""
        program, *arguments = map(str, command)
        self._child = pexpect.spawn(
            program, arguments, dimensions=(rows, columns), env=_environment(environment), timeout=None, cwd=cwd
        )
        self._child.delaybeforesend = None  # else 50 ms before every key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._child.isalive():
            self.kill()
        self._child.close()

    @property
    def text(self) -> str:
        """The screen, line by line."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The screen, row by row: each cell's character, colours and attributes."""
        return [[self._screen.buffer[y][x] for x in range(self._screen.columns)] for y in range(self._screen.lines)]

    @property
    def words(self) -> str:
        """The screen without its layout: every run of white space and frame lines is one space."""
        return " ".join(self.text.translate(str.maketrans("│╭╮╰╯─▕▏", "        ")).split())

    @property
    def pid(self) -> int:
        """The program's process."""
        number: int = self._child.pid
        return number

    def type(self, text: str | bytes, until: str = "") -> None:
        """Press keys, and wait until these words are on the screen; bytes are sent as they are."""
        self._child.send(text)
        self.wait_for(until)

    def read(self, seconds: float) -> bytes:
        """What the program writes within this time, as soon as there is anything; it is not drawn."""
        try:
            written: bytes = self._child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return b""
        self.written += written
        if _ASKS_FOR_FRAMES in self.written[-len(written) - len(_ASKS_FOR_FRAMES) + 1 :]:
            self._child.send(_HAS_FRAMES)
        return written

    def wait(self, condition: Callable[[Terminal], object], seconds: float, what: str) -> None:
        """Let the program draw until the condition holds."""
        end = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < end, f"no {what} after {seconds:g} s:\n{self.text}"
            assert self._draw(0.1), f"the program ended before {what}:\n{self.text}"

    def wait_for(self, words: str, seconds: float = PATIENCE_S) -> None:
        """Wait until these words are on the screen."""
        self.wait(lambda terminal: words in terminal.words, seconds, repr(words))

    def wait_quiet(self, quiet_s: float = 0.15, seconds: float = 10) -> None:
        """Let the program draw until it has written nothing for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = len(self.written)
            self._draw(quiet_s)
            if len(self.written) == before:
                return

    def resize(self, columns: int, rows: int) -> None:
        """Another size, as when a window is dragged."""
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def signal(self, number: int) -> None:
        """Send the program a signal."""
        os.kill(self._child.pid, number)

    def hang_up(self, seconds: float = PATIENCE_S) -> int:
        """Take the terminal away, as when its window is closed; gives what the program then ended with."""
        os.close(self._child.child_fd)
        end = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(self._child.pid, os.WNOHANG)
            if ended:
                self._child.ptyproc.closed = self._child.closed = self._child.terminated = True
                self._child.ptyproc.terminated = True
                self._child.ptyproc.fd = self._child.child_fd = -1
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, f"still running {seconds:g} s after its terminal has gone"
            time.sleep(0.02)

    def kill(self) -> None:
        """End the program as a power cut would."""
        os.kill(self._child.pid, signal.SIGKILL)
        while self._draw(0.1):
            pass
        self._child.close()

    def leave(self, keys: str, seconds: float = PATIENCE_S) -> int | None:
        """Press the keys that end the program and give its exit code."""
        self.type(keys)
        end = time.monotonic() + seconds
        while self._draw(0.1):
            assert time.monotonic() < end, f"still running after {seconds:g} s:\n{self.text}"
        self._child.close()
        code: int | None = self._child.exitstatus
        return code

    def end(self, seconds: float = PATIENCE_S) -> int | None:
        """Wait until the program ends by itself, and give its exit code."""
        return self.leave("", seconds)

    def _draw(self, seconds: float) -> bool:
        """Draw what arrives within this time; False once the program has ended."""
        try:
            written = self._frame + self.read(seconds)
        except pexpect.EOF:
            return False
        begin = written.rfind(_FRAME_BEGINS)
        whole = begin < 0 or _FRAME_ENDS in written[begin:]
        end = _partial_mark(written) if whole else begin
        self._stream.feed(written[:end])
        self._frame = written[end:]
        return True


def _partial_mark(written: bytes) -> int:
    """Index of an incomplete mark at the end of the written bytes; their length if none."""
    escape = written.rfind(b"\x1b", -len(_FRAME_BEGINS) + 1)
    return escape if escape >= 0 and _FRAME_BEGINS.startswith(written[escape:]) else len(written)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    others = ("SPECCHAT_", "NO_COLOR", "COLUMNS", "LINES")  # a size there goes before the terminal's own
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | changes
