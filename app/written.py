"""Files that are written whole: new ones under a name that is free, and one that is replaced in one step."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_first_free(folder: Path, names: Iterable[str], text: str) -> Path:
    """Write to the first of these names that is free, and return its path; nothing is ever overwritten.

    Raises:
        OSError: the folder cannot be written, or every name is taken.
    """
    for name in names:
        try:
            with (folder / name).open("x", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            continue
        return folder / name
    raise FileExistsError(errno.EEXIST, "the file exists already")


def write_over(path: Path, text: str) -> None:
    """Replace a file in one step; its folder is made where it is missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
