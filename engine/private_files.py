"""Files and folders that only their owner can read: what people say to a model is nobody else's business."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700; what exists stays as it is.

    Raises:
        OSError: a folder cannot be made, or something that is no folder has its name.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)  # another program may have made it meanwhile


def create_text(path: Path, *, buffering: int = -1, errors: str = "strict") -> TextIO:
    """Open a file that does not exist yet for UTF-8 text with \\n line ends, with mode 0600 whatever the umask.

    Raises:
        FileExistsError: it exists.
        OSError: it cannot be made.
    """
    return open(path, "x", buffering, encoding="utf-8", errors=errors, newline="\n", opener=_opener)


def make_private(path: Path) -> None:
    """Take away what others may do with a file or folder of ours; nothing happens where that is not allowed.

    A folder that is made for sharing (the sticky bit, as /tmp has it) is left alone.
    """
    with suppress(OSError):
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and not mode & stat.S_ISVTX:
            path.chmod(stat.S_IMODE(mode) & stat.S_IRWXU)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
