"""The user's files: keys in the settings file; themes, TOML files with colours of Textual's themes and the fates."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import Theme

from specchat.app.errors import SettingsError
from specchat.app.settings.settings_file import changed_keys
from specchat.app.storage.files import read_toml
from specchat.app.ui.keys import keymap
from specchat.app.ui.themes import FATES_ON_DARK, theme_colours

FATES = "fates"
"""The table with the colours of tokens: `accepted = "#4cc9a4"`."""
VARIABLES = "variables"
"""The table with other variables of Textual's style sheets: `footer-key-foreground = "#d99bc1"`."""
_KINDS = {field.name: field.type for field in fields(Theme)}
_FATES = {name.removeprefix("fate-") for name in FATES_ON_DARK}


def own_files(app: App[Any], settings_file: Path | None) -> list[str]:
    """Use the keys of the settings file and the themes in its folder; returns a sentence for each invalid one."""
    if settings_file is None:
        return []
    keys, wrong = changed_keys(settings_file)
    changed, unusable = keymap(keys)
    app.set_keymap(changed)
    themes, unreadable = own_themes(settings_file)
    for theme in themes:
        app.register_theme(theme)
    return [*(f"{settings_file.name}: {sentence}" for sentence in (*wrong, *unusable)), *unreadable]


def own_themes(settings_file: Path) -> tuple[list[Theme], list[str]]:
    """The themes in the folder of the settings file; a sentence for each file that is none."""
    themes, sentences = list[Theme](), list[str]()
    folder = settings_file.parent / "themes"
    try:
        paths = sorted(folder.glob("*.toml"))
    except OSError as error:
        return themes, [f"{folder} cannot be read: {error.strerror}"]
    for path in paths:
        try:
            themes.append(read_theme(path))
        except SettingsError as error:
            sentences.append(str(error))
    return themes, sentences


def read_theme(path: Path) -> Theme:
    """Read a theme; its name is by default that of the file.

    Raises:
        SettingsError: the file cannot be read, or a field is unknown or invalid.
    """
    try:
        values = read_toml(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"theme {path} is not used: {getattr(error, 'strerror', None) or error}") from error
    variables = _table(path, values.pop(VARIABLES, {}), VARIABLES)
    for fate, colour in _table(path, values.pop(FATES, {}), FATES).items():
        if fate not in _FATES:
            raise _wrong(path, f"{FATES}.{fate}", f"is not a fate: choose one of {', '.join(sorted(_FATES))}")
        _check(path, f"{FATES}.{fate}", colour, _COLOUR)
        variables[f"fate-{fate}"] = colour
    for name, value in values.items():
        if name not in _CHECKS:
            raise _wrong(path, name, f"is not a field of a theme: choose one of {', '.join((*_KINDS, FATES))}")
        _check(path, name, value, _CHECKS[name])
    if "primary" not in values:
        raise _wrong(path, "primary", 'is missing: give it a colour, as in primary = "#d99bc1"')
    try:
        theme = Theme(**{"name": path.stem, **values}, variables=variables)
        theme_colours(theme, theme.to_color_system().generate())
    except (ColorParseError, ValueError) as error:
        raise SettingsError(f"theme {path} is not used: {error}") from error
    return theme


def _table(path: Path, value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(path, name, f"must be a table, as in [{name}]")
    return {str(key): _text(path, f"{name}.{key}", text) for key, text in value.items()}


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(path, name, f"is {value!r}: it must be a text")
    return value


def _is_colour(value: Any) -> bool:
    try:
        Color.parse(value)
    except (ColorParseError, AttributeError, TypeError):
        return False
    return True


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_COLOUR = (_is_colour, ', which is not a colour: write it as "#d99bc1" or "red"')
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: _COLOUR for name, kind in _KINDS.items() if kind in ("str", "str | None")},
    "name": (lambda v: isinstance(v, str) and bool(v.strip()) and v.isprintable(), ": it must be a text of one line"),
    "luminosity_spread": (_is_share, ": it must be a number from 0 to 1"),
    "text_alpha": (_is_share, ": it must be a number from 0 to 1"),
    "dark": (lambda v: isinstance(v, bool), ": it must be true or false"),
    "ansi": (lambda v: isinstance(v, bool), ": it must be true or false"),
}
"""For each field of a theme a test of its value, and the end of the sentence about an invalid one."""


def _check(path: Path, name: str, value: object, check: tuple[Callable[[Any], bool], str]) -> None:
    valid, wrong = check
    if not valid(value):
        raise _wrong(path, name, f"is {value!r}{wrong}")


def _wrong(path: Path, field: str, why: str) -> SettingsError:
    return SettingsError(f"theme {path} is not used: {field} {why}")
