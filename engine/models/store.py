"""Model store: one subfolder per fetched or converted model, which is complete whenever it exists.

A model is built in a work folder (`.unfinished/NAME`) and renamed into place when it is complete, so that a killed
process never leaves half a model; the next attempt resumes from the work folder. A lock file per model admits one
building process at a time.
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

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.disk import disk_errors, folder_bytes
from specchat.engine.progress import Progress, ignore_progress

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ORIGIN_FILE = "specchat.json"
_UNFINISHED = ".unfinished"
_LOCKS = ".locks"
_PACKED, _PACKED_MARKER = "packed", "packed.json"
_PACKED_KINDS = ("gguf", "q8", "q4")
_ORIGINALS = ".originals"
_STALE_S = 3 * 86400
"""Age after which an untouched work folder is deleted."""
_LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A complete model in the store."""

    name: str
    folder: Path
    bytes: int
    origin: str
    """Where it came from, for display; empty if the user put the folder there."""


class ModelStore:
    """Store of models under one folder. The first build creates the folder.


    Args:
        folder: where they are.
        marker: the file that every complete model has.
    """

    def __init__(self, folder: Path, marker: str = "config.json") -> None:
        self.folder = folder
        self._marker = marker

    @property
    def packed(self) -> ModelStore:
        """What was made of these models for the quantised kernels, as `NAME.gguf`, `NAME.q8` and `NAME.q4`."""
        return ModelStore(self.folder / _PACKED, marker=_PACKED_MARKER)

    def original(self, name: str) -> Path:
        """Folder of the file that a model was converted from, where that is kept."""
        return self.folder / _ORIGINALS / name

    def path(self, name: str) -> Path:
        """Folder of the model of that name, whether it exists or not.

        Raises:
            EngineError: `name` is not a valid folder name.
        """
        if not _NAME.fullmatch(name):
            raise EngineError(f"{name!r} cannot name a stored model: use letters, digits, dots, dashes and underscores")
        return self.folder / name

    def find(self, name: str) -> Path | None:
        """Folder of a complete model, or None."""
        if not _NAME.fullmatch(name):
            return None
        folder = self.folder / name
        return folder if (folder / self._marker).is_file() else None

    def models(self) -> list[StoredModel]:
        """All complete models, sorted by name."""
        if not self.folder.is_dir():
            return []
        return [
            StoredModel(folder.name, folder, folder_bytes(folder) + self._other_bytes(folder.name), origin(folder))
            for folder in sorted(self.folder.iterdir())
            if self.find(folder.name) is not None
        ]

    @contextmanager
    def building(self, name: str, progress: Progress = ignore_progress) -> Iterator[Path]:
        """Context manager that holds the model's lock and yields its work folder; waits for another process.

        The work folder may hold files of an interrupted attempt, and is kept on an error for the next one. Call `find`
        again inside: the process that held the lock may have built the model.

        Raises:
            EngineError: the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        final = self.path(name)
        with disk_errors(self.folder, f"preparing {name}"):
            work = self.folder / _UNFINISHED / name
            make_folder(self.folder / _LOCKS)
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
                    make_folder(work)
                    os.utime(work)
            yield work
            if final.is_dir():
                shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()

    def complete(self, name: str, built: Path, origin: str) -> Path:
        """Move a complete model folder into place atomically. Call it inside `building`.

        Args:
            built: the folder, somewhere inside the work folder.
            origin: where the model came from, for display.

        Raises:
            EngineError: the disk is full.
        """
        final = self.path(name)
        with disk_errors(self.folder, f"storing {name}"):
            (built / _ORIGIN_FILE).write_text(json.dumps({"origin": origin}) + "\n", encoding="utf-8")
            # The content must reach the disk before the rename does.
            for file in built.rglob("*"):
                if file.is_file():
                    _flush(file)
            if final.exists():  # a folder without its marker is no model: half-deleted by hand
                shutil.rmtree(final)
            built.rename(final)
        return final

    def discard(self, name: str) -> None:
        """Delete a model that is to be built anew. Call it inside `building`."""
        with disk_errors(self.folder, f"replacing {name}"):
            if self.path(name).exists():
                shutil.rmtree(self.path(name))
            make_folder(self.folder / _UNFINISHED / name)

    def remove(self, name: str) -> None:
        """Delete a stored model, its work folder and the file it was converted from, if they exist."""
        for folder in (self.path(name), self.folder / _UNFINISHED / name, self.original(name)):
            shutil.rmtree(folder, ignore_errors=True)
        if self._marker != _PACKED_MARKER:
            for kind in _PACKED_KINDS:
                self.packed.remove(f"{name}.{kind}")

    def _other_bytes(self, name: str) -> int:
        """Of what was made of a model, and of the file it was converted from."""
        packed = sum(folder_bytes(self.packed.path(f"{name}.{kind}")) for kind in _PACKED_KINDS)
        return packed + folder_bytes(self.original(name))

    def _remove_stale(self, keep: str) -> None:
        from filelock import FileLock, Timeout

        for work in (self.folder / _UNFINISHED).glob("*"):
            # Each attempt touches its work folder; a running one also holds the lock.
            with suppress(OSError, Timeout):
                if work.name != keep and time.time() - work.stat().st_mtime > _STALE_S:
                    with FileLock(self.folder / _LOCKS / f"{work.name}.lock", timeout=0):
                        shutil.rmtree(work, ignore_errors=True)


def origin(folder: Path) -> str:
    """Where a stored model came from, as `ModelStore.complete` was told; empty if it was not."""
    try:
        stated = json.loads((folder / _ORIGIN_FILE).read_text(encoding="utf-8"))["origin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(stated)


def _flush(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
