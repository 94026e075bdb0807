"""Named sets of controls, one small TOML file each, so that they can be read, copied and changed by hand."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

from specchat.app.errors import SettingsError
from specchat.app.settings.controls import CONTROLS
from specchat.app.settings.settings import Settings, load_values, save_settings

_NAME = re.compile(r"[\w.+-]{1,40}")
_NAMES = [control.name for control in CONTROLS if not (control.look or control.by_template)]


class Presets:
    """The presets in one folder, which is made when the first is saved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """All of them, in alphabetical order."""
        return sorted(path.stem for path in self._folder.glob("*.toml") if _NAME.fullmatch(path.stem))

    def apply(self, name: str, settings: Settings) -> Settings:
        """The settings with the preset's values for every control.

        Raises:
            SettingsError: there is no such preset, or its file has a value that is out of range.
        """
        path = self._path(name)
        if not path.is_file():
            saved = self.names()
            known = f"choose one of {', '.join(saved)}" if saved else "none is saved yet, /save NAME makes one"
            raise SettingsError(f"preset {name!r} is not known: {known}")
        defaults = asdict(Settings())
        values = {control: defaults[control] for control in _NAMES} | load_values(path, _NAMES)
        return replace(settings, **values)

    def save(self, name: str, settings: Settings) -> Path:
        """Keep the controls as they are under a name that is not taken.

        Raises:
            SettingsError: the name is taken or is none, or the file cannot be written.
        """
        path = self._path(name)
        if path.exists():
            raise SettingsError(f"preset {name!r} exists already: choose another name, or delete {path}")
        save_settings(path, settings, _NAMES)
        return path

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise SettingsError(f"{name!r} is no name for a preset: use letters, digits, and - . + _ between them")
        return self._folder / f"{name}.toml"
