"""A TOML file that is changed in place: comments, order and unknown keys stay as the user wrote them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specchat.app.storage.folder_lock import locked
from specchat.app.storage.written import write_over
from specchat.engine import make_folder


def read_toml(path: Path) -> dict[str, Any]:
    """What the file says; a missing file says nothing.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not TOML, or not UTF-8 text.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def update_toml(path: Path, values: Mapping[str, str | int | float | bool | None]) -> None:
    """Set top-level keys of the file, which is made where it is missing; None removes a key.

    Raises:
        OSError: it cannot be read or written.
        ValueError: it is not TOML, or not UTF-8 text.
    """
    import tomlkit  # here, so that the first frame does not wait for it

    make_folder(path.parent)
    with locked(path.parent):
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")
        for name, value in values.items():
            if value is None:
                document.pop(name, None)
            else:
                document[name] = value
        write_over(path, tomlkit.dumps(document))
