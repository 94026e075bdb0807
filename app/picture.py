"""Pictures of the screen as files."""

from __future__ import annotations

from pathlib import Path


def write_new(folder: Path, svg: str) -> Path:
    """Write to the first file name that is free, and return it; nothing is ever overwritten.

    Raises:
        OSError: the folder cannot be written.
    """
    number = 1
    while (path := folder / f"specchat-{number}.svg").exists():
        number += 1
    with path.open("x", encoding="utf-8") as file:
        file.write(svg)
    return path
