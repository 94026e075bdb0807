"""Named texts, one file each, so that they can be read, copied and changed by hand: system prompts and templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from specchat.app.errors import SettingsError
from specchat.app.storage.files import write_first_free

_NAME = re.compile(r"[\w.+-]{1,40}")
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class NamedTexts:
    """The texts in one folder, which is made when the first is saved.

    Args:
        folder: Has a file NAME.md for each.
        kind: What one of them is called in sentences.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind

    def names(self) -> list[str]:
        """All of them, in alphabetical order."""
        return sorted(path.stem for path in self._folder.glob("*.md") if _NAME.fullmatch(path.stem))

    def read(self, name: str) -> str:
        """The text of this name.

        Raises:
            SettingsError: there is none, or it cannot be read.
        """
        path = self._path(name)
        if not path.is_file():
            saved = self.names()
            known = f"choose one of {', '.join(saved)}" if saved else f"none is saved yet, {path} would be it"
            raise SettingsError(f"{self._kind} {name!r} is not known: {known}")
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error

    def save(self, name: str, text: str) -> Path:
        """Keep a text under a name that is not taken.

        Raises:
            SettingsError: the name is taken or is none, or the file cannot be written.
        """
        path = self._path(name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return write_first_free(path.parent, [path.name], text.strip() + "\n")
        except FileExistsError:
            message = f"{self._kind} {name!r} exists already: choose another name, or delete {path}"
            raise SettingsError(message) from None
        except OSError as error:
            raise SettingsError(f"{path} cannot be written: {error.strerror or error}") from error

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise SettingsError(
                f"{name!r} is no name for a {self._kind}: use letters, digits, and - . + _ between them"
            )
        return self._folder / f"{name}.md"


def variables(text: str) -> list[str]:
    """The names between {{ and }} in a template, in order, once each."""
    return list(dict.fromkeys(_VARIABLE.findall(text)))


def filled(text: str, values: Mapping[str, str]) -> str:
    """A template with its variables replaced; what is put in is not looked through again.

    Raises:
        SettingsError: a variable has no value.
    """
    missing = [name for name in variables(text) if not values.get(name, "").strip()]
    if missing:
        raise SettingsError(f"the template lacks a value for {', '.join(missing)}: give {missing[0]}=…")
    return _VARIABLE.sub(lambda match: values[match[1]], text)
