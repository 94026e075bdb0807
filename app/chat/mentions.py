"""Files that are named in a prompt with an @ before them, and the completion of their paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MENTION = re.compile(r'(?<![^\s(\[{<"\'])@(?:"([^"\n]+)(?:"|$)|([^\s"]+))', re.MULTILINE)
_BEGUN = re.compile(r'(?<![^\s(\[{<"\'])@(?:"([^"\n]*)|([^\s"]*))$')
_BEHIND = ".,;:!?)]}>'"
"""Signs of a sentence that do not belong to a name before them."""
MOST = 200
"""Names that are offered at most."""


def mentions(text: str) -> Iterator[tuple[str, ...]]:
    """For each mention the names that may be meant, likeliest first: with the signs behind it, and without."""
    for found in _MENTION.finditer(text):
        quoted, plain = found.groups()
        if quoted is not None:
            yield (quoted,)
        else:
            yield tuple(dict.fromkeys((plain, plain.rstrip(_BEHIND))))


def mention(name: str, *, complete: bool = True) -> str:
    """A name as it is written in a prompt; one that is not complete may be typed on."""
    if not re.search(r"\s", name):
        return f"@{name}"
    return f'@"{name}"' if complete else f'@"{name}'


def begun(before: str) -> str | None:
    """What stands before the cursor of a mention that is being typed; None if none is."""
    found = _BEGUN.search(before)
    return None if found is None else found[1] if found[1] is not None else found[2]


def completions(name: str) -> list[str]:
    """Paths that begin like this one, folders with a slash behind them; hidden ones only where their dot is typed."""
    head, tail = name[: name.rfind("/") + 1], name[name.rfind("/") + 1 :]
    try:
        with os.scandir(Path(head or ".").expanduser()) as entries:
            found = [
                head + entry.name + ("/" if entry.is_dir() else "")
                for entry in entries
                if entry.name.startswith(tail) and entry.name.startswith(".") is tail.startswith(".")
            ]
    except (OSError, ValueError, RuntimeError):  # no such folder, no such user
        return []
    return sorted(found, key=lambda path: (path.endswith("/"), path))[:MOST]
