"""Moving a file out of the way without losing it: what specchat cannot read it keeps under a numbered name."""

from __future__ import annotations

from pathlib import Path


def move_aside(path: Path, companions: tuple[str, ...] = ()) -> Path:
    """Rename the file to the first free `NAME.broken-1`, `-2`, … and return its new path.

    `companions` are suffixes of files that belong to it and move with it, before it.

    Raises:
        OSError: the folder does not allow it.
    """
    suffixes = (*companions, "")
    number = 1
    while any(Path(f"{path}.broken-{number}{suffix}").exists() for suffix in suffixes):
        number += 1
    for suffix in suffixes:
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(f"{path}.broken-{number}{suffix}")
    return Path(f"{path}.broken-{number}")
