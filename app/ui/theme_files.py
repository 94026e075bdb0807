"""Themes of the user's own: TOML files in a folder, each with a name, colours of Textual's themes, and of the fates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from specchat.app.errors import SettingsError
from specchat.app.storage.files import read_toml
from specchat.app.ui import themes

FATES = "fates"
"""The table with the colours of tokens: `accepted = "#4cc9a4"`."""
VARIABLES = "variables"
"""The table with other variables of Textual's style sheets: `footer-key-foreground = "#d99bc1"`."""
_KINDS = {field.name: field.type for field in fields(Theme)}
_COLOURS = {name for name, kind in _KINDS.items() if name != "name" and kind in ("str", "str | None")}
_NUMBERS, _SWITCHES = ("luminosity_spread", "text_alpha"), ("dark", "ansi")
_FATES = {name.removeprefix("fate-") for name in themes.FATES_ON_DARK}


def read_themes(folder: Path) -> tuple[list[Theme], list[str]]:
    """The themes of the folder, and a sentence for each file that is none."""
    found, sentences = [], []
    for path in sorted(folder.glob("*.toml")):
        try:
            found.append(read_theme(path))
        except SettingsError as error:
            sentences.append(str(error))
    return found, sentences


def read_theme(path: Path) -> Theme:
    """The theme in a file; without a name, it is called as its file is.

    Raises:
        SettingsError: the file cannot be read, or a field of it is no field of a theme or no colour.
    """
    try:
        values = read_toml(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"theme {path} is not used: {error}") from error
    variables = _table(path, values.pop(VARIABLES, {}), VARIABLES)
    for fate, colour in _table(path, values.pop(FATES, {}), FATES).items():
        if fate not in _FATES:
            raise _wrong(path, f"{FATES}.{fate}", f"is no fate: choose of {', '.join(sorted(_FATES))}")
        variables[f"fate-{fate}"] = _colour(path, f"{FATES}.{fate}", colour)
    for name, value in values.items():
        _check(path, name, value)
    if "primary" not in values:
        raise _wrong(path, "primary", 'is missing: give it a colour, as in primary = "#d99bc1"')
    try:
        theme = Theme(**{"name": path.stem, **values}, variables=variables)
        themes.colours(theme, theme.to_color_system().generate())
    except (ColorParseError, ValueError) as error:
        raise SettingsError(f"theme {path} is not used: {error}") from error
    return theme


def _check(path: Path, name: str, value: object) -> None:
    """One top-level field."""
    if name in _COLOURS:
        _colour(path, name, value)
    elif name == "name":
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise _wrong(path, name, f"is {value!r}: it must be a text of one line")
    elif name in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise _wrong(path, name, f"is {value!r}: it must be a number from 0 to 1")
    elif name in _SWITCHES:
        if not isinstance(value, bool):
            raise _wrong(path, name, f"is {value!r}: it must be true or false")
    else:
        known = ", ".join((*_KINDS, FATES))
        raise _wrong(path, name, f"is no field of a theme: choose of {known}")


def _table(path: Path, value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(path, name, f"must be a table, as in [{name}]")
    return {str(key): _text(path, f"{name}.{key}", text) for key, text in value.items()}


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(path, name, f"is {value!r}: it must be a text")
    return value


def _colour(path: Path, name: str, value: Any) -> str:
    try:
        Color.parse(value)
    except (ColorParseError, AttributeError, TypeError):
        raise _wrong(path, name, f'is {value!r}, which is no colour: write it as "#d99bc1" or "red"') from None
    return str(value)


def _wrong(path: Path, field: str, why: str) -> SettingsError:
    return SettingsError(f"theme {path} is not used: {field} {why}")
