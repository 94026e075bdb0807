"""Fetching a model in a process of its own, which can be paused by ending it: the next one goes on where it stopped."""

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
    """How far a download has got."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"


class Pull:
    """One model, fetched by `specchat models pull --json`; what has arrived stays on the disk.

    Args:
        name: A preset, a hub id or a GGUF file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = PullState.PAUSED
        self.text = ""
        """What is being done, or why it failed, in a sentence."""
        self.fraction: float | None = None
        """How much of it is done; None where that is not known."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        """Whether something is being fetched now."""
        return self.state is PullState.RUNNING

    def start(self) -> None:
        """Begin, or go on."""
        if self.state is PullState.RUNNING:
            return
        command = [sys.executable, "-m", "specchat", "models", "pull", "--json", "--", self.name]
        self._process, self.state = None, PullState.RUNNING  # the end of one that was paused is not this one's
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # with what it starts itself, it is ended together
        )
        threading.Thread(target=self._watch, args=(self._process,), name="pull", daemon=True).start()

    def pause(self) -> None:
        """Stop; what has arrived stays."""
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
