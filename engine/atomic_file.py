"""Replacing a file in one step: readers and crashes see the old content or the new, never a part of either."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_ABANDONED_S = 3600.0
"""A partial file of this age was left by a process that was killed; no write takes this long."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what was written there takes the place of `path` when the block ends.

    The content is on the disk before it does. A symbolic link stays a link, and a file that is replaced keeps its
    permissions. If the block raises, `path` stays as it was and the partial file is removed.

    Raises:
        OSError: the folder does not exist or cannot be written, or the disk is full.
    """
    path = path.resolve()
    for left in path.parent.glob(f".{path.name}.*.part"):
        if left.stat().st_mtime < time.time() - _ABANDONED_S:
            left.unlink(missing_ok=True)
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
