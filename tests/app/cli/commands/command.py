"""Runs command lines in this process and keeps what they print."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from specchat.app.cli.main import run


class Output(io.TextIOWrapper):
    """Stands for stdout or stderr; a terminal if asked."""

    def __init__(self, terminal: bool, on_write: Callable[[str], None] | None = None) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._terminal = terminal
        self._on_write = on_write

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        if self._on_write:
            self._on_write(text)
        return super().write(text)

    @property
    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Done:
    """A command line that has run."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on stderr of a command line that failed, which prints nothing else."""
        assert self.code == 2
        assert self.out == ""
        assert self.err.startswith("specchat: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("specchat: ").rstrip()


def command(
    *arguments: object,
    stdin: bytes | None = None,
    typed: str = "",
    terminal: bool = False,
    on_write: Callable[[str], None] | None = None,
) -> Done:
    """Run `specchat` with these arguments.

    Args:
        arguments: The command line.
        stdin: What is piped in; None for a terminal.
        typed: What is typed on that terminal.
        terminal: Whether stdout and stderr are terminals.
        on_write: Called with every text before it is written to stdout.
    """
    out, err, keys = Output(terminal, on_write), Output(terminal), io.TextIOWrapper(io.BytesIO(stdin or typed.encode()))
    if stdin is None:
        keys.isatty = lambda: True  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", keys)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = run([str(argument) for argument in arguments])
    return Done(code, out.text, err.text)
