"""Named presets, system prompts and templates, one file each, to be read, copied and edited by hand.

`Preferences` has all of them, and stores the settings that are changed in the app.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specchat.app.errors import AppError, SettingsError, explained
from specchat.app.settings.controls import CONTROLS
from specchat.app.settings.settings import AUTO, OF_MODEL, Settings
from specchat.app.settings.settings_file import load_values, save_settings, stored_settings
from specchat.app.storage.files import write_first_free
from specchat.engine import Applies

_NAME = re.compile(r"[\w.+-]{1,40}")
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_CHAT = (Applies.ROUND, Applies.REQUEST)
_CONTROLS = [c.name for c in CONTROLS if c.applies in _CHAT and not (c.by_template or c.form)]


class NamedFiles:
    """Files of one kind in a folder, which is created with the first file.

    Args:
        folder: The folder.
        kind: What a file is called in messages.
        suffix: Suffix of the file names.
    """

    def __init__(self, folder: Path, kind: str, suffix: str) -> None:
        self.folder, self.kind, self._suffix = folder, kind, suffix

    def names(self) -> list[str]:
        """All names in alphabetical order; none if the folder cannot be read."""
        with suppress(OSError):
            return sorted(path.stem for path in self.folder.glob(f"*{self._suffix}") if _NAME.fullmatch(path.stem))
        return []

    def path(self, name: str) -> Path:
        """The file of this name, which may not exist.

        Raises:
            SettingsError: it is not a valid name.
        """
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise SettingsError(f"{name!r} cannot name a {self.kind}: use letters, digits, and - . + _ between them")
        return self.folder / f"{name}{self._suffix}"

    def existing(self, name: str, hint: str) -> Path:
        """The existing file of this name; `hint` completes the message where there are no files.

        Raises:
            SettingsError: it does not exist, or cannot be read.
        """
        path = self.path(name)
        with explained(f"{path} cannot be read", SettingsError):
            found = path.is_file()
        if not found:
            saved = self.names()
            known = f"choose one of {', '.join(saved)}" if saved else f"none is saved yet, {hint}"
            raise SettingsError(f"{self.kind} {name!r} is not known: {known}")
        return path

    def taken(self, name: str) -> SettingsError:
        """The error for a name that exists already."""
        return SettingsError(f"{self.kind} {name!r} exists already: choose another name, or delete {self.path(name)}")


class Presets(NamedFiles):
    """Named sets of controls as TOML files in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "preset", ".toml")

    def apply(self, name: str, settings: Settings) -> Settings:
        """The settings with the preset's values for every control.

        Raises:
            SettingsError: there is no such preset, or its file has an invalid value.
        """
        path = self.existing(name, "/save NAME makes one")
        usual = {name: getattr(Settings(), name) for name in _CONTROLS}
        return replace(settings, **usual | load_values(path, _CONTROLS))

    def save(self, name: str, settings: Settings) -> Path:
        """Save the controls under a new name.

        Raises:
            SettingsError: the name exists or is not valid, or the file cannot be written.
        """
        path = self.path(name)
        with explained(f"{path} cannot be written", SettingsError):
            if path.exists():
                raise self.taken(name)
        save_settings(path, settings, _CONTROLS)
        return path


class NamedTexts(NamedFiles):
    """Named texts as Markdown files in a folder; `kind` is what one is called in messages."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, kind, ".md")

    def read(self, name: str) -> str:
        """The text of this name.

        Raises:
            SettingsError: it does not exist, or cannot be read.
        """
        path = self.existing(name, f"{self.path(name)} would be it")
        with explained(f"{path} cannot be read", SettingsError):
            return path.read_text(encoding="utf-8", errors="replace").strip()

    def save(self, name: str, text: str) -> Path:
        """Save a text under a new name.

        Raises:
            SettingsError: the name exists or is not valid, or the file cannot be written.
        """
        path = self.path(name)
        with explained(f"{path} cannot be written", SettingsError):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return write_first_free(path.parent, [path.name], text.strip() + "\n")
            except FileExistsError:
                raise self.taken(name) from None

    def remove(self, name: str) -> str:
        """Delete the file of this name; returns its text.

        Raises:
            SettingsError: it does not exist, or cannot be deleted.
        """
        text, path = self.read(name), self.path(name)
        with explained(f"{path} cannot be deleted", SettingsError):
            path.unlink()
        return text


def variables(text: str) -> list[str]:
    """The names between {{ and }} in a template, in order, once each."""
    return list(dict.fromkeys(_VARIABLE.findall(text)))


def filled(text: str, values: Mapping[str, str]) -> str:
    """A template with its variables replaced, not recursively.

    Raises:
        SettingsError: a variable has no value.
    """
    missing = [name for name in variables(text) if not values.get(name, "").strip()]
    if missing:
        raise SettingsError(f"the template needs a value for {', '.join(missing)}: give {missing[0]}=…")
    return _VARIABLE.sub(lambda match: values[match[1]], text)


class Preferences:
    """The settings file, and the named files next to it.

    Args:
        file: The settings file.
        on_error: Called in the writing thread with a sentence for each change that could not be stored.
        profiled: Whether settings of a model are stored for the target; otherwise for all.
    """

    def __init__(self, file: Path, on_error: Callable[[str], None], *, profiled: bool = True) -> None:
        self._file, self._profiled = file, profiled
        self._stored, self._profiles, _ = stored_settings(file)
        self.presets = Presets(file.parent / "presets")
        self.systems = NamedTexts(file.parent / "system", "system prompt")
        self.templates = NamedTexts(file.parent / "templates", "template")
        self._on_error = on_error
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preferences")

    def remember(self, settings: Settings, names: Iterable[str]) -> None:
        """Store the named settings; what a model has of its own is stored for the target, if it is new there."""
        changed = list(names)
        own = {name: getattr(settings, name) for name in changed if self._profiled and name in OF_MODEL}
        known = asdict(Settings()) | self._stored | self._profiles.get(settings.target, {})
        new = {name: value for name, value in own.items() if value != known[name]}
        self._profiles.setdefault(settings.target, {}).update(new)
        others = [name for name in changed if name not in own]

        def write() -> None:
            try:
                save_settings(self._file, settings, others, new)
            except AppError as error:
                self._on_error(f"{', '.join(changed)}: not stored for the next start ({error})")

        self._writer.submit(write)

    def of_target(self, target: str, before: str) -> dict[str, Any]:
        """The settings stored for a target, and the ones for all targets where `before` has its own."""
        usual = asdict(Settings()) | self._stored | {"draft": "", "drafter": AUTO}
        return {name: usual[name] for name in self._profiles.get(before, {})} | self._profiles.get(target, {})

    def close(self) -> None:
        """Finish writing."""
        self._writer.shutdown(wait=True)
