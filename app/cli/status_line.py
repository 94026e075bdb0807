"""One line on a terminal that says what is being done, and is removed afterwards."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import Self, TextIO

from specchat.app.sanitize import escape_controls
from specchat.engine import Loading

_BACK_AND_CLEAR = "\r\x1b[K"


class StatusLine:
    """Shows the newest text; where the stream is no terminal it writes nothing, or each text on a line of its own.

    It draws when it is told something. (Rich's status draws twelve times a second from a thread of its own, which takes
    time from what is measured.)
    """

    def __init__(self, stream: TextIO, *, as_lines: bool = False) -> None:
        """Make it; with `as_lines`, texts are also written where the stream is no terminal.

        The first of them waits for the second: a command that fails before its work begins has one line to say.
        """
        self._stream = stream
        self._as_lines = as_lines and not stream.isatty()
        self._begun = False
        self._first: str | None = None
        """The first line, until it is written."""
        self._shown = ""

    def say(self, text: str, suffix: str = "") -> None:
        """Replace the line; where it is too long, the text is cut and the suffix stays."""
        if self._as_lines:
            self._add_line(escape_controls(text) + suffix)
        if not self._stream.isatty():
            return
        columns = shutil.get_terminal_size().columns
        line = escape_controls(text)[: columns - len(suffix) - 1] + suffix
        if line != self._shown:
            self._shown = line  # before an interrupt can come: then it is cleared
            self._stream.write(_BACK_AND_CLEAR + line)
            self._stream.flush()

    def _add_line(self, line: str) -> None:
        if not self._begun:
            self._begun, self._first = True, line
            return
        if self._first is not None:
            print(self._first, file=self._stream)
            self._first = None
        print(line, file=self._stream, flush=True)

    def show(self, loading: Loading) -> None:
        """Say what is being loaded, and how much of it has been."""
        self.say(loading.text, "" if loading.fraction is None else f" {loading.fraction:.0%}")

    def __enter__(self) -> Self:
        return self

    def clear(self) -> None:
        """Remove the line, so that something can be printed."""
        if self._shown:
            self._stream.write(_BACK_AND_CLEAR)
            self._stream.flush()
            self._shown = ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.clear()
