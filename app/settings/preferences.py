"""Stores settings that are changed in the app, in one background thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specchat.app.errors import AppError
from specchat.app.settings.named_files import Presets
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import save_settings


class Preferences:
    """The settings file and its presets.

    `on_error` is called in the writing thread with a sentence for each change that could not be stored.
    """

    def __init__(self, file: Path, on_error: Callable[[str], None]) -> None:
        self._file = file
        self.presets = Presets(file.parent / "presets")
        self._on_error = on_error
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preferences")

    def remember(self, settings: Settings, names: Iterable[str]) -> None:
        """Store these settings; other entries of the file stay."""
        changed = list(names)

        def write() -> None:
            try:
                save_settings(self._file, settings, changed)
            except AppError as error:
                self._on_error(f"{', '.join(changed)}: not stored for the next start ({error})")

        self._writer.submit(write)

    def close(self) -> None:
        """Finish writing."""
        self._writer.shutdown(wait=True)
