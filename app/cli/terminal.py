"""Standard output and error of the commands: text that they print cannot act on the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from specchat.app.sanitize import escape_controls


class _Escaped:
    """A stream that replaces what a terminal acts on by visible characters.

    Args:
        stream: what it writes to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self.unescaped.write(escape_controls(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape everything that is printed, also by libraries. Textual draws on the terminal itself."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Escaped(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unescaped(stream: TextIO) -> TextIO:
    """The stream for own control sequences."""
    return getattr(stream, "unescaped", stream)
