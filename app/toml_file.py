"""A flat TOML file that is changed in place: comments, order and unknown keys stay as the user wrote them."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_SCALAR = r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[^#\s]+'
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


class TomlFile:
    """The text of a settings file and what it says. Only top-level text, numbers and truth values can be changed."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.values: dict[str, Any] = tomllib.loads(text)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file's content; a missing file is an empty one.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not TOML, or not UTF-8 text.
        """
        try:
            return cls(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def update(self, values: Mapping[str, str | int | float | bool | None]) -> None:
        """Set top-level keys; None takes a key out.

        Raises:
            ValueError: the file is laid out in a way that cannot be changed safely; it stays as it was.
        """
        text = self.text
        for name, value in values.items():
            text = _changed(text, name, value)
        expected = {**self.values, **values}
        changed = type(self)(text)
        if changed.values != {name: value for name, value in expected.items() if value is not None}:
            raise ValueError(f"{', '.join(values)} must be changed by hand in this file")
        self.text, self.values = changed.text, changed.values

    def write(self, path: Path) -> None:
        """Replace the file in one step: readers and crashes see the old text or the new, never half of one.

        Raises:
            OSError: it cannot be written.
        """
        path = path.resolve()  # a link to a file in a folder of dotfiles stays a link
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                os.chmod(draft, path.stat().st_mode & 0o777)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise


def _changed(text: str, name: str, value: str | int | float | bool | None) -> str:
    table = _TABLE.search(text)
    top, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    line = re.compile(rf'^([ \t]*"?{re.escape(name)}"?[ \t]*=[ \t]*)(?:{_SCALAR})(.*\n?)', re.MULTILINE)
    if value is None:
        return line.sub("", top) + rest
    literal = _literal(value)
    top, found = line.subn(lambda match: match[1] + literal + match[2], top)
    if not found:
        top += f"{'' if not top or top.endswith(chr(10)) else chr(10)}{name} = {literal}\n"
    return top + rest


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's strings are JSON's but for DEL
    return str(value).lower() if isinstance(value, bool) else repr(value)
