"""Downloads a model in a separate process. Ending the process pauses the download: the next process resumes it."""

import os
import signal
import sys
import threading
from contextlib import suppress
from enum import StrEnum
from typing import Any

from specchat.app.sources.child import Child

FAILED = "the download ended without a reason"


class PullState(StrEnum):
    """State of a download."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"


class Pull:
    """Download of one model by `specchat models pull --json`. Partial data stays on the disk.

    Args:
        name: A preset, a hub id or a GGUF file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = PullState.PAUSED
        self.text = ""
        """Progress, or the reason of a failure, as a sentence."""
        self.fraction: float | None = None
        """Fraction that is done; None if unknown."""
        self._child: Child | None = None

    @property
    def running(self) -> bool:
        """Whether the download is running."""
        return self.state is PullState.RUNNING

    def start(self) -> None:
        """Begin or resume."""
        if self.state is PullState.RUNNING:
            return
        command = [sys.executable, "-m", "specchat", "models", "pull", "--json", "--", self.name]
        self._child, self.state = None, PullState.RUNNING  # ignore the end of a paused process
        self._child = Child(command, self._take, start_new_session=True)  # a process group, to end it with its children
        threading.Thread(target=self._watch, args=(self._child,), name="pull", daemon=True).start()

    def pause(self) -> None:
        """Stop; partial data stays."""
        if self.state is PullState.RUNNING and self._child is not None:
            self.state = PullState.PAUSED
            with suppress(ProcessLookupError):
                os.killpg(self._child.process.pid, signal.SIGTERM)

    def _take(self, progress: Any) -> None:
        self.text, self.fraction = str(progress["text"]), progress["fraction"]

    def _watch(self, child: Child) -> None:
        code = child.wait()
        if self.state is PullState.RUNNING and self._child is child:
            self.state = PullState.DONE if code == 0 else PullState.FAILED
            if code:
                self.text = child.why(FAILED)
