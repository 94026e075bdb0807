"""Files: paths that a user names, atomic replacement, and files and folders that only their owner can read."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from uuid import uuid4

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_ABANDONED_S = 3600.0
"""Age at which a partial file counts as left by a killed process; no write takes this long."""


def local_path(spec: str) -> Path | None:
    """The file or folder that `spec` names, or None."""
    try:
        path = Path(spec).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # the name is too long, or that of an unknown user's folder
        return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path next to `path`, and renames it to `path` when the block ends.

    Readers and crashes see the old content or the new, never a part of either: the content is flushed to the disk
    before the rename. A symbolic link stays a link, and an existing file keeps its permissions. If the block raises,
    `path` is unchanged and the temporary file is removed.

    Raises:
        OSError: the folder does not exist or cannot be written, or the disk is full.
    """
    path = path.resolve()
    for leftover, status in existing(path.parent.glob(f".{path.name}.*.part")):
        if status.st_mtime < time.time() - _ABANDONED_S:
            leftover.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(path.stat().st_mode & 0o777)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def existing(files: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Files that exist, each with its status; another program may have deleted some since they were listed."""
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        yield file, status


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700; existing folders are unchanged.

    Raises:
        OSError: a folder cannot be created, or a file has its name.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)  # another process may just have created it


def create_text(path: Path, *, buffering: int = -1, errors: str = "strict") -> TextIO:
    """Create a UTF-8 text file with \\n line ends and mode 0600, whatever the umask.

    Raises:
        FileExistsError: it exists.
        OSError: it cannot be created.
    """
    return open(path, "x", buffering, encoding="utf-8", errors=errors, newline="\n", opener=_opener)


def make_private(path: Path) -> None:
    """Remove the permissions of group and others from a file or folder; does nothing where that is not allowed.

    A shared folder (sticky bit, as on /tmp) is unchanged.
    """
    with suppress(OSError):
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and not mode & stat.S_ISVTX:
            path.chmod(stat.S_IMODE(mode) & stat.S_IRWXU)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
