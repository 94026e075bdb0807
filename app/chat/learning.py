"""Learning from the stored chats: a separate process trains the draft head further (`specchat distill --chats`).

The process has one thread and the lowest priority. It is suspended while the engine works or the machine runs on its
battery. It keeps its text and its state in one folder, which is deleted when it ends.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from specchat.app.errors import explained
from specchat.app.paths import heads_folder
from specchat.app.sources.child import Child

MINUTES = 10.0
IDLE_S = 5.0
"""How long the engine must have been idle."""
BUSY, BATTERY = "the engine works", "the machine is not on mains power"
FAILED = "its process was ended: start again with /learn"


def on_mains() -> bool:
    """Whether the machine is on mains power, or has no battery."""
    battery = getattr(psutil, "sensors_battery", lambda: None)()
    return battery is None or battery.power_plugged is not False


class Learning:
    """Runs at most one learning process, and keeps the heads that it has made.

    Args:
        command: Makes the command line from target, head and folder.
        mains: Whether the machine is on mains power.
        now: A clock in seconds.
    """

    def __init__(
        self,
        command: Callable[[str, str, Path], Sequence[str]] | None = None,
        mains: Callable[[], bool] = on_mains,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._mains, self._now = command or _command, mains, now
        self._target = ""
        self._child: Child | None = None
        self._text, self._result = "", dict[str, Any]()
        self._paused, self._busy_at = "", -IDLE_S

    @staticmethod
    def tidy() -> None:
        """Delete the text that killed apps have left."""
        for folder in _works().glob("[0-9]*"):
            if not psutil.pid_exists(int(folder.name)):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether there is a process, suspended or not."""
        return self._child is not None

    @property
    def state(self) -> str:
        """What the process does, as a sentence."""
        return f"learning: {f'paused because {self._paused}' if self._paused else self._text or 'starting'}"

    def start(self, target: str) -> None:
        """Start to train the head of this target further, which is the learnt one or else the one of its preset.

        Raises:
            AppError: The process cannot be started.
        """
        folder = self._work
        shutil.rmtree(folder, ignore_errors=True)
        self._target, self._text, self._result, self._paused = target, "", {}, ""
        learnt = _head(target)
        command = self._command(target, str(learnt) if learnt.is_dir() else target, folder)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        with explained("learning cannot start"):
            # Its own group, in this session: the system ends a suspended process whose app was killed.
            self._child = child = Child(command, self._take, env=env, process_group=0)
        with suppress(psutil.Error):
            psutil.Process(child.process.pid).nice(19)

    def update(self, busy: bool) -> str | None:
        """Suspend or resume the process; once it has ended, keep what it made and return a sentence about it."""
        if busy:
            self._busy_at = self._now()
        if (child := self._child) is None:
            return None
        if child.process.poll() is not None:
            return self._end(child)
        idle = self._now() - self._busy_at >= IDLE_S
        paused = BUSY if not idle else "" if self._mains() else BATTERY
        if bool(paused) != bool(self._paused):
            with suppress(psutil.Error):
                own = psutil.Process(child.process.pid)
                own.suspend() if paused else own.resume()
        self._paused = paused
        return None

    def stop(self) -> None:
        """End the process and delete its text."""
        if (child := self._child) is not None:
            self._child = None
            with suppress(OSError):
                child.process.kill()  # it may be suspended
            child.process.wait()
            shutil.rmtree(self._work, ignore_errors=True)

    def undo(self, target: str) -> bool:
        """Return to the head before the last learning; whether there was a learnt one."""
        learnt, before = _head(target), _head(target, before=True)
        found = [folder for folder in (learnt, before) if folder.is_dir()]
        if learnt in found:
            shutil.rmtree(learnt)
        if before in found:
            before.rename(learnt)
        return bool(found)

    @property
    def _work(self) -> Path:
        return _works() / str(os.getpid())

    def _end(self, child: Child) -> str:
        code, self._child = child.wait(), None
        try:
            if code or "after" not in self._result:
                return f"nothing was learnt: {child.why(FAILED).removeprefix('specchat: ')}"
            before, after = self._result["before"], self._result["after"]
            words = f"τ {before:.2f} → {after:.2f} on the newest chats, which were held out"
            if after <= before:
                return f"learnt nothing that helps: {words}; the head stays as it was"
            self._keep()
            return f"learnt: {words} · used from the next loading of the model (/unload) · /learn undo"
        except OSError as error:
            return f"what was learnt cannot be kept: {error.strerror or error}"
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _keep(self) -> None:
        """Make the new head the learnt one; the one before it is kept."""
        learnt, before = _head(self._target), _head(self._target, before=True)
        for folder in (learnt, before):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if learnt.is_dir():
            shutil.rmtree(before, ignore_errors=True)
            learnt.rename(before)
        try:
            self._work.rename(learnt)
        except OSError:
            self.undo(self._target)  # restore the previous head
            raise
        shutil.rmtree(learnt / ".work", ignore_errors=True)

    def _take(self, said: Any) -> None:
        self._text = str(said.get("text", self._text))
        self._result = said


def _works() -> Path:
    return heads_folder().with_name("learning")


def _head(target: str, *, before: bool = False) -> Path:
    """Folder of the learnt head of a target, or of the one before it."""
    name = hashlib.blake2b(target.encode(), digest_size=8).hexdigest()
    return (heads_folder().with_name("heads-before") if before else heads_folder()) / name


def _command(target: str, head: str, folder: Path) -> Sequence[str]:
    options = {"--target": target, "--from": head, "--out": str(folder), "--minutes": f"{MINUTES:g}", "--device": "cpu"}
    given = [word for option in options.items() for word in option]
    return [sys.executable, "-m", "specchat", "distill", "--chats", "--json", *given]
