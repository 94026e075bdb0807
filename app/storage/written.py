"""Files that are written whole, readable by their owner only: new ones under a free name, or replaced in one step."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from specchat.engine import FILE_MODE, create_text, make_folder, make_private, replacing


def write_first_free(folder: Path, names: Iterable[str], text: str) -> Path:
    """Write to the first of these names that is free, and return its path; nothing is ever overwritten.

    Raises:
        OSError: the folder is missing or cannot be written, or every name is taken.
    """
    for name in names:
        try:
            with create_text(folder / name, errors="replace") as file:
                file.write(text)
        except FileExistsError:
            continue
        return folder / name
    raise FileExistsError(errno.EEXIST, "the file exists already")


def write_over(path: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it. Its folder is made where missing.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(path.parent)
    make_private(path)
    with replacing(path) as part:
        part.touch(FILE_MODE)
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")
