"""A pipe for the stderr of a program, of which the end is kept."""

from __future__ import annotations

import os
from threading import Thread

from specchat.app.sanitize import escape_controls

LONGEST_LINE = 300
"""Characters of the last line that are shown."""
_KEPT = 1 << 14
_WAIT_S = 1.0
"""A process that the program has started may keep the pipe open."""


class StderrPipe:
    """The pipe, which is read in a thread: a program never waits for it."""

    def __init__(self) -> None:
        source, sink = os.pipe()
        self.sink = os.fdopen(sink, "w")
        """To be given to the program, and closed once the program has started."""
        self._end = b""
        self._reader = Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    def last_line(self) -> str:
        """The last line with text that a program wrote which has ended; empty without one."""
        self._reader.join(_WAIT_S)
        lines = self._end.decode(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(escape_controls(last).split())[:LONGEST_LINE]

    def _read(self, source: int) -> None:
        with os.fdopen(source, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                self._end = (self._end + data)[-_KEPT:]
