"""Files of the user: TOML that is changed in place, texts that are written whole, and broken files that are kept."""

import errno
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specchat.engine import FILE_MODE, create_text, make_folder, make_private, replacing


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a missing one is empty.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not TOML, or not UTF-8 text.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except UnicodeError:
        raise ValueError("it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def update_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys of a TOML file, also in nested tables; None removes a key. Comments, order and other keys stay.

    The folder is locked, so that programs that change a file at the same time do not lose each other's changes.

    Raises:
        OSError: it cannot be read or written.
        ValueError: it is not TOML, or not UTF-8 text, or has a value where a table is needed.
    """
    import tomlkit  # imported here to keep the start fast
    from filelock import FileLock

    make_folder(path.parent)
    with FileLock(path.parent / ".lock", mode=FILE_MODE):
        read_toml(path)  # tomlkit's errors are less clear
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")

        def update(table: Any, changes: Mapping[str, Any]) -> None:
            for name, value in changes.items():
                if value is None:
                    table.pop(name, None)
                elif isinstance(value, Mapping):
                    inner = table.setdefault(name, tomlkit.table())
                    if not isinstance(inner, Mapping):
                        raise ValueError(f"{name} must be a table")
                    update(inner, value)
                else:
                    table[name] = value

        update(document, values)
        write_over(path, tomlkit.dumps(document))


def write_over(path: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only. Creates its folder.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(path.parent)
    make_private(path)
    with replacing(path) as part:
        part.touch(FILE_MODE)
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def write_first_free(folder: Path, names: Iterable[str], text: str) -> Path:
    """Write to the first of these names that does not exist, readable by its owner only, and return its path.

    A write that fails leaves no file.

    Raises:
        OSError: the folder is missing or cannot be written, or every name is taken.
    """
    for path in (folder / name for name in names):
        try:
            file = create_text(path, errors="replace")
        except FileExistsError:
            continue
        try:
            with file:
                file.write(text)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
    raise FileExistsError(errno.EEXIST, "the file exists already")


def move_aside(path: Path, companions: tuple[str, ...] = ()) -> Path:
    """Rename a file that cannot be read to the first free `NAME.broken-1`, `-2`, … and return its new path.

    Args:
        path: The file.
        companions: Suffixes of files that belong to it. They are renamed first.

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
