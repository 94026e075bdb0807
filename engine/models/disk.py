"""Disk helpers: hashes, sizes, free space, and error messages for full or read-only disks."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.progress import size_text

_NO_SPACE = "No space left on device"
"""Message of a full disk in errors without an error number (pip, safetensors)."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    """Bytes allocated to the files under a folder; files that are being removed count as 0."""
    return sum(_allocated(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _allocated(path: Path) -> int:
    try:
        stat = path.stat()
    except OSError:
        return 0
    # A download may reserve its full length first: count allocated blocks only.
    blocks: int | None = getattr(stat, "st_blocks", None)
    return stat.st_size if blocks is None else min(stat.st_size, blocks * 512)


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Check that `needed` bytes are free on the disk of `folder`, which must exist.

    Raises:
        EngineError: fewer bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EngineError(
            f"{purpose} needs {size_text(needed)} of disk and {folder} has {size_text(free)} free, "
            f"{size_text(needed - free)} too little: make room, or set SPECCHAT_HOME to a folder on a larger disk"
        )


@contextmanager
def disk_errors(folder: Path, purpose: str) -> Iterator[None]:
    """Context manager that turns errors of a full or unwritable disk into EngineError; others pass through.

    Raises:
        EngineError: the disk of `folder` is full, read-only, or not writable for the user.
    """
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT) or says_no_space(str(error)):
            raise EngineError(
                f"{purpose} stopped because the disk of {folder} is full: make room, or set SPECCHAT_HOME to a "
                "folder on a larger disk, then try again"
            ) from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
            raise EngineError(
                f"{purpose} cannot write to {folder} ({os.strerror(number)}): set SPECCHAT_HOME to a folder of yours"
            ) from error
        raise


def says_no_space(text: str) -> bool:
    """Whether an error message means a full disk."""
    return _NO_SPACE.lower() in text.lower()
