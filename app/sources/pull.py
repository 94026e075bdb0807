"""Downloads a model in a separate process. Ending the process pauses the download: the next process resumes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from enum import StrEnum

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
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        """Whether the download is running."""
        return self.state is PullState.RUNNING

    def start(self) -> None:
        """Begin or resume."""
        if self.state is PullState.RUNNING:
            return
        command = [sys.executable, "-m", "specchat", "models", "pull", "--json", "--", self.name]
        self._process, self.state = None, PullState.RUNNING  # ignore the end of a paused process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a process group, to end it with its children
        )
        threading.Thread(target=self._watch, args=(self._process,), name="pull", daemon=True).start()

    def pause(self) -> None:
        """Stop; partial data stays."""
        if self.state is PullState.RUNNING and self._process is not None:
            self.state = PullState.PAUSED
            _end(self._process)

    def _watch(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), name="pull-errors", daemon=True)
        reader.start()
        for line in process.stdout:
            with suppress(ValueError, KeyError, TypeError):
                progress = json.loads(line)
                self.text, self.fraction = str(progress["text"]), progress["fraction"]
        code = process.wait()
        reader.join()
        if self.state is PullState.RUNNING and self._process is process:
            self.state = PullState.DONE if code == 0 else PullState.FAILED
            if code:
                self.text = next((line.strip() for line in reversed(said) if line.strip()), FAILED)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGTERM)
