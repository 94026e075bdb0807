"""A separate process that reports what it does as JSON lines."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


class Child:
    """A running command, whose output is read in two threads.

    Args:
        command: The command line.
        take: Called with each JSON value that the process prints on a line of stdout; lines that it cannot use are
            ignored.
        options: Further options of `subprocess.Popen`.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, command: Sequence[str], take: Callable[[Any], None], **options: Any) -> None:
        pipe = subprocess.PIPE
        options |= {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        self.process = subprocess.Popen(command, encoding="utf-8", errors="replace", **options)
        self._take = take
        self._said: list[str] = []
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._listen)]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Wait for the end of the process and of its output; return the exit code."""
        for reader in self._readers:
            reader.join()
        return self.process.wait()

    def why(self, otherwise: str) -> str:
        """The last line on stderr, which tells why the process failed; `otherwise` without one."""
        return next((line.strip() for line in reversed(self._said) if line.strip()), otherwise)

    def _follow(self) -> None:
        for line in self.process.stdout or ():
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                self._take(json.loads(line))

    def _listen(self) -> None:
        self._said.extend(self.process.stderr or ())
