"""A program in a pseudo-terminal, and what a person would see of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import pexpect
import pyte


class Terminal:
    """Runs a program and draws what it writes, as a terminal of this size does."""

    def __init__(self, *command: object, columns: int = 140, rows: int = 40, **environment: str) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        program, *arguments = map(str, command)
        self._child = pexpect.spawn(
            program, arguments, dimensions=(rows, columns), env=_environment(environment), timeout=None
        )
        self._child.delaybeforesend = None  # else 50 ms before every key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._child.close(force=True)

    @property
    def text(self) -> str:
        """The screen, line by line."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def words(self) -> str:
        """The screen without its layout: every run of white space and frame lines is one space."""
        return " ".join(self.text.translate(str.maketrans("│╭╮╰╯─▕▏", "        ")).split())

    @property
    def pid(self) -> int:
        """The program's process."""
        number: int = self._child.pid
        return number

    def type(self, text: str) -> None:
        """Press keys."""
        self._child.send(text)

    def read(self, seconds: float) -> bytes:
        """What the program writes within this time, as soon as there is anything; it is not drawn."""
        try:
            written: bytes = self._child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return b""
        return written

    def wait(self, condition: Callable[[Terminal], object], seconds: float, what: str) -> None:
        """Let the program draw until the condition holds."""
        end = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < end, f"no {what} after {seconds:g} s:\n{self.text}"
            assert self._draw(0.1), f"the program ended before {what}:\n{self.text}"

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Wait until these words are on the screen."""
        self.wait(lambda terminal: words in terminal.words, seconds, repr(words))

    def kill(self) -> None:
        """End the program as a power cut would."""
        os.kill(self._child.pid, signal.SIGKILL)
        while self._draw(0.1):
            pass
        self._child.close()

    def leave(self, keys: str, seconds: float = 30) -> int | None:
        """Press the keys that end the program and give its exit code."""
        self.type(keys)
        end = time.monotonic() + seconds
        while self._draw(0.1):
            assert time.monotonic() < end, f"still running after {seconds:g} s:\n{self.text}"
        self._child.close()
        code: int | None = self._child.exitstatus
        return code

    def _draw(self, seconds: float) -> bool:
        """Draw what arrives within this time; False once the program has ended."""
        try:
            self._stream.feed(self._child.read_nonblocking(1 << 16, timeout=seconds))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECCHAT_", "NO_COLOR"))}
    return kept | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | changes
