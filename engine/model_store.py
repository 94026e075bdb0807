"""The folder of fetched and converted models: one subfolder per model, each complete or not there at all.

A model is built in a work folder beside the finished ones (`.unfinished/NAME`) and renamed into place when it is
complete, so a killed process leaves nothing half-used; the next attempt finds the work folder and goes on with what
is sound in it. A lock file per model lets one process at a time build it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.disk import disk_errors, folder_bytes
from engine.errors import EngineError
from engine.progress import Progress, ignore_progress

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ORIGIN_FILE = "specchat.json"
_UNFINISHED = ".unfinished"
_LOCKS = ".locks"
_STALE_S = 3 * 86400
"""A work folder untouched for this long is not waiting for anybody."""
_LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A complete model on this machine."""

    name: str
    folder: Path
    bytes: int
    origin: str
    """Where it came from, for people; empty if a person put the folder there."""


class ModelStore:
    """The models under one folder. Creating it touches nothing; the folder is made by the first build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where the model of that name is, or would be.

        Raises:
            EngineError: `name` cannot be the name of a folder here.
        """
        if not _NAME.fullmatch(name):
            raise EngineError(f"{name!r} cannot name a stored model: use letters, digits, dots, dashes and underscores")
        return self.folder / name

    def find(self, name: str) -> Path | None:
        """The folder of a complete model, or None."""
        if not _NAME.fullmatch(name):
            return None
        folder = self.folder / name
        return folder if (folder / "config.json").is_file() else None

    def models(self) -> list[StoredModel]:
        """Every complete model, by name."""
        if not self.folder.is_dir():
            return []
        return [
            StoredModel(folder.name, folder, folder_bytes(folder), _origin(folder))
            for folder in sorted(self.folder.iterdir())
            if self.find(folder.name) is not None
        ]

    @contextmanager
    def building(self, name: str, progress: Progress = ignore_progress) -> Iterator[Path]:
        """Hold the model's lock, waiting for another process that has it, and give its work folder.

        The work folder may hold files of an attempt that was cut off. Look again with `find` inside: the other
        process may have built the model. The work folder stays on an error, for the next attempt.

        Raises:
            EngineError: the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        final = self.path(name)
        with disk_errors(self.folder, f"preparing {name}"):
            work = self.folder / _UNFINISHED / name
            (self.folder / _LOCKS).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / _LOCKS / f"{name}.lock")
            while True:
                try:
                    lock.acquire(timeout=0)
                    break
                except Timeout:
                    progress("fetch", f"Waiting for another specchat that is preparing {name}", None)
                    time.sleep(_LOCK_POLL_S)
        try:
            self._remove_stale(keep=name)
            if self.find(name) is None:
                with disk_errors(self.folder, f"preparing {name}"):
                    work.mkdir(parents=True, exist_ok=True)
                    os.utime(work)
            yield work
            if final.is_dir():
                shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()

    def complete(self, name: str, built: Path, origin: str) -> Path:
        """Move a complete model folder into place, in one step. Call it inside `building`.

        Args:
            built: the folder, somewhere inside the work folder.
            origin: where the model came from, for people.

        Raises:
            EngineError: the disk is full.
        """
        final = self.path(name)
        with disk_errors(self.folder, f"storing {name}"):
            (built / _ORIGIN_FILE).write_text(json.dumps({"origin": origin}) + "\n", encoding="utf-8")
            # The rename must not reach the disk before the content does.
            for file in built.rglob("*"):
                if file.is_file():
                    _flush(file)
            if final.exists():  # a folder without config.json: something half-deleted by hand
                shutil.rmtree(final)
            built.rename(final)
        return final

    def remove(self, name: str) -> None:
        """Delete a stored model and whatever an attempt to build it left; nothing happens if there is none."""
        for folder in (self.path(name), self.folder / _UNFINISHED / name):
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_stale(self, keep: str) -> None:
        from filelock import FileLock, Timeout

        for work in (self.folder / _UNFINISHED).glob("*"):
            # Each attempt touches its work folder; one that is still running also holds the lock.
            with suppress(OSError, Timeout):
                if work.name != keep and time.time() - work.stat().st_mtime > _STALE_S:
                    with FileLock(self.folder / _LOCKS / f"{work.name}.lock", timeout=0):
                        shutil.rmtree(work, ignore_errors=True)


def _origin(folder: Path) -> str:
    try:
        origin = json.loads((folder / _ORIGIN_FILE).read_text(encoding="utf-8"))["origin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(origin)


def _flush(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
