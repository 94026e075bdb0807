"""Model store: one subfolder per downloaded or converted model.

A model is built in a work folder (`.unfinished/NAME`) and renamed into place when it is complete, so that a killed
process never leaves an incomplete model; the next attempt resumes from the work folder. A lock file per model allows
one building process at a time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.disk import disk_errors, folder_bytes
from specchat.engine.progress import Progress, ignore_progress

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{,199}")
_LONGEST = 120
"""Characters of a name that is made from that of a file."""
_ORIGIN_FILE = "specchat.json"
_UNFINISHED = ".unfinished"
_LOCKS = ".locks"
_PACKED, _PACKED_MARKER = "packed", "packed.json"
_PACKED_KINDS = ("gguf", "q8", "q4")
_ORIGINALS = ".originals"
_STALE_S = 3 * 86400
"""Age after which an untouched work folder is deleted."""
_LOCK_POLL_S = 0.2


def storable(name: str) -> str:
    """A name for the store like that of a file or folder, which may be any text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST].strip(".-") or "model"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A complete model in the store."""

    name: str
    folder: Path
    bytes: int
    origin: str
    """Preset, hub id or file that it was made from, for display; empty if the user put the folder there."""


class ModelStore:
    """Store of models under one folder, which the first build creates.

    Args:
        folder: of the store.
        marker: file that every complete model has.
    """

    def __init__(self, folder: Path, marker: str = "config.json") -> None:
        self.folder = folder
        self._marker = marker

    @property
    def packed(self) -> ModelStore:
        """Store of these models packed for the quantised kernels, named `NAME.gguf`, `NAME.q8` and `NAME.q4`."""
        return ModelStore(self.folder / _PACKED, marker=_PACKED_MARKER)

    def original(self, name: str) -> Path:
        """Folder for the file that a model was converted from."""
        return self.folder / _ORIGINALS / name

    def path(self, name: str) -> Path:
        """Folder of the model of that name; it need not exist.

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
            StoredModel(folder.name, folder, sum(map(folder_bytes, self._parts(folder.name))), origin(folder))
            for folder in sorted(self.folder.iterdir())
            if self.find(folder.name) is not None
        ]

    @contextmanager
    def building(self, name: str, progress: Progress = ignore_progress) -> Iterator[Path]:
        """Context manager that holds the model's lock and yields its work folder; waits for another process.

        The work folder may contain files of an interrupted attempt, and is kept after an error. Call `find` again
        inside: the process that held the lock may have built the model.

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
            with disk_errors(self.folder, f"preparing {name}"):
                make_folder(work)
                os.utime(work)
            yield work
            if final.is_dir():
                shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()

    def find_or_build(
        self,
        name: str,
        origin: str,
        build: Callable[[Path], None],
        progress: Progress,
        is_valid: Callable[[Path], bool] = lambda _: True,
    ) -> Path:
        """Folder of a model, which is built first if it is missing or not valid.

        Args:
            origin: as for `complete`.
            build: builds the model in the subfolder `model` of the work folder that it is called with.
        """

        def find() -> Path | None:
            folder = self.find(name)
            return folder if folder is not None and is_valid(folder) else None

        if (ready := find()) is not None:
            return ready
        with self.building(name, progress) as work:
            if (ready := find()) is not None:
                return ready
            build(work)
            return self.complete(name, work / "model", origin)

    def complete(self, name: str, built: Path, origin: str) -> Path:
        """Move a complete model folder into place atomically. Call it inside `building`.

        Args:
            built: the folder, inside the work folder.
            origin: where the model came from, for display.

        Raises:
            EngineError: the disk is full.
        """
        final = self.path(name)
        with disk_errors(self.folder, f"storing {name}"):
            (built / _ORIGIN_FILE).write_text(json.dumps({"origin": origin}) + "\n", encoding="utf-8")
            # The content must reach the disk before the rename.
            for file in built.rglob("*"):
                if file.is_file():
                    with file.open("rb+") as opened:
                        os.fsync(opened.fileno())
            if final.exists():  # not valid, or without its marker
                shutil.rmtree(final)
            built.rename(final)
        return final

    def _parts(self, name: str) -> list[Path]:
        """A model, its packed versions and the file it was converted from; they need not exist."""
        return [self.path(name), *(self.packed.path(f"{name}.{kind}") for kind in _PACKED_KINDS), self.original(name)]

    def _remove_stale(self, keep: str) -> None:
        from filelock import FileLock, Timeout

        for work in (self.folder / _UNFINISHED).glob("*"):
            # Each attempt touches its work folder; a running one also holds the lock.
            with suppress(OSError, Timeout):
                if work.name != keep and time.time() - work.stat().st_mtime > _STALE_S:
                    with FileLock(self.folder / _LOCKS / f"{work.name}.lock", timeout=0):
                        shutil.rmtree(work, ignore_errors=True)


def origin(folder: Path) -> str:
    """Origin of a stored model as given to `ModelStore.complete`; empty if unknown."""
    with suppress(EngineError, KeyError):
        return str(read_json(folder / _ORIGIN_FILE)["origin"])
    return ""
