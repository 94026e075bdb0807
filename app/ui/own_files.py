"""What the user's own files change in the app: keys and themes, beside the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

from specchat.app.settings.settings_file import changed_keys
from specchat.app.ui.keys import keymap
from specchat.app.ui.theme_files import read_themes


def own_files(app: App[Any], settings_file: Path | None) -> list[str]:
    """Use the keys of the settings file and the themes beside it; a sentence for each thing that is not used."""
    if settings_file is None:
        return []
    keys, wrong = changed_keys(settings_file)
    changed, unusable = keymap(keys)
    app.set_keymap(changed)
    found, bad = read_themes(settings_file.parent / "themes")
    for theme in found:
        app.register_theme(theme)
    return [*(f"{settings_file.name}: {sentence}" for sentence in (*wrong, *unusable)), *bad]
