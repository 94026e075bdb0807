"""Reading and writing the settings file: command line options over `SPECCHAT_*` variables over the file."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specchat.app.errors import SettingsError
from specchat.app.settings.settings import AUTO, DEMONSTRATION, HIDE, OF_MODEL, PREFIX, SHOW, TABLE, Settings
from specchat.app.storage.files import read_toml, update_toml
from specchat.engine import make_private

KEYS, PROFILES = "keys", "models"
"""Tables of the settings file: key bindings, and settings by target, as in `[models."qwen3-0.6b"]`, which have priority
over the others of the file."""
SERVERS = "mcp"
"""Table of MCP servers (`app.chat.tool_servers`)."""
KINDS: Mapping[str, type[Any]] = {"str": str, "int": int, "float": float}
"""Types of values."""
PHRASES = {"str": "a text", "int": "a whole number", "float": "a number"}
_AUTO = {name for name, each in TABLE.items() if each.kind.endswith("None") and name != "seed"}
"""Settings that may be auto, which is None."""


def load_settings(
    path: Path, options: Mapping[str, object] | None = None, *, profiled: bool = True
) -> tuple[Settings, str | None]:
    """The effective settings, and a message about the file if there is a problem with it.

    `options` come from the command line; None means not given. Settings of the target count if `profiled`: not for a
    server, whose model has another name. Wrong values are left out. Instead of a file that is not TOML, the defaults
    are used.

    Raises:
        SettingsError: an option or a variable has a value that is out of range.
    """
    for existing in (path.parent, path):
        make_private(existing)
    stored, profiles, notice = stored_settings(path)
    stated = {name: os.environ.get(PREFIX + name.upper()) for name in TABLE}
    variables = {name: _parsed(name, text) for name, text in stated.items() if text}
    given = {name: _typed(name, value) for name, value in (options or {}).items() if value is not None}
    target = {"target": DEMONSTRATION, **stored, **variables, **given}["target"]
    return Settings(**{**stored, **(profiles.get(target, {}) if profiled else {}), **variables, **given}), notice


def load_values(path: Path, names: Iterable[str]) -> dict[str, Any]:
    """The named preferences that a settings or preset file sets.

    Raises:
        SettingsError: the file cannot be read, or a value has the wrong type.
    """
    try:
        values = read_toml(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    return {name: _typed(name, values[name]) for name in names if name in values}


def save_settings(
    path: Path, settings: Settings, names: Iterable[str], profile: Mapping[str, Any] | None = None
) -> None:
    """Write preferences to the file, in one step; comments and keys of other versions stay.

    Args:
        path: The settings file; it and its folder are created where missing.
        settings: Where the values come from.
        names: The preferences that the user changed, without values from the command line.
        profile: Values to store for the target.

    Raises:
        SettingsError: the file cannot be read or written; it was not changed.
    """
    values = asdict(settings)
    try:
        written = {name: AUTO if value is None else value for name, value in (profile or {}).items()}
        own = {PROFILES: {settings.target: written}} if written else {}
        update_toml(path, {name: values[name] for name in names} | own)
    except ValueError as error:
        raise SettingsError(f"{path} was not changed: fix this error in the file first: {error}") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error


def stored_settings(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str | None]:
    """The settings of the file, its profiles, and a message if there is a problem with it."""
    try:
        values = _renamed(read_toml(path))
    except OSError as error:
        return {}, {}, f"{path} cannot be read ({error.strerror}): default settings are used"
    except ValueError as error:
        return {}, {}, f"{path} is not used until this error in it is fixed: {error}"
    faults: list[str] = []
    known = _valid({}, {name: value for name, value in values.items() if name in TABLE}, faults)
    profiles = {
        target: _valid(known, _of_model(_table(f"{PROFILES}.{target}", own, faults), faults), faults)
        for target, own in _table(PROFILES, values.get(PROFILES, {}), faults).items()
    }
    notices = [f"{path} has values that are not used: {'; '.join(faults)}"] if faults else []
    if unknown := [name for name in values if name not in (*TABLE, KEYS, PROFILES, SERVERS)]:
        notices.append(f"{path} has settings that this version does not know: {', '.join(unknown)}")
    return known, profiles, "; ".join(notices) or None


def _valid(others: Mapping[str, Any], values: Mapping[str, object], faults: list[str]) -> dict[str, Any]:
    """The values that are valid together with `others`; a sentence for each of the rest is added to `faults`."""
    valid: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, value in values.items():
        try:
            typed = _typed(name, value)
            Settings(**{**others, **valid, name: typed})
            valid[name] = typed
        except SettingsError as error:
            wrong[name] = str(error)
    if valid and wrong:  # a value may need a later one, as a drafter its draft
        return valid | _valid({**others, **valid}, {name: values[name] for name in wrong}, faults)
    faults += wrong.values()
    return valid


def _of_model(values: Mapping[str, object], faults: list[str]) -> Mapping[str, object]:
    """The settings of a profile; settings that are not of one model are added to `faults`."""
    others = [name for name in values if name not in OF_MODEL]
    faults += [f"{name} is not a setting of one model: move it above [{PROFILES}]" for name in others]
    return {name: value for name, value in values.items() if name in OF_MODEL}


def _table(name: str, value: object, faults: list[str]) -> Mapping[str, Any]:
    """A table of the file; an empty one, and a fault, where it is something else."""
    if isinstance(value, Mapping):
        return value
    faults.append(f"{name} must be a table, as in [{name}]")
    return {}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Translate the option `show_rejected` (true or false) of earlier versions."""
    shown = values.pop("show_rejected", None)
    return values if shown is None else {"rejected": SHOW if shown else HIDE, **values}


def _typed(name: str, value: object, label: str = "") -> Any:
    """Check the type of a value, which `label` names in messages; whole numbers are also valid floats."""
    kind = TABLE[name].type
    if name in _AUTO and value == AUTO:
        return None
    if kind == "float" and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value).__name__ != kind:
        words = f"{PHRASES[kind]} or {AUTO}" if name in _AUTO else PHRASES[kind]
        raise SettingsError(f"{label or name} is {value!r}: it must be {words}")
    return value


def _parsed(name: str, text: str) -> Any:
    """Parse the value of an environment variable."""
    value: object = text
    with suppress(ValueError):
        value = KINDS[TABLE[name].type](text)
    return _typed(name, value, PREFIX + name.upper())


def changed_keys(path: Path) -> tuple[dict[str, str], list[str]]:
    """Keys by binding id, and a sentence for each invalid entry; both empty if the file cannot be read."""
    try:
        table = read_toml(path).get(KEYS, {})
    except (OSError, ValueError):  # reported when the settings were loaded
        return {}, []
    if not isinstance(table, Mapping):
        return {}, [f"{path}: {KEYS} must be a table, as in [{KEYS}]"]
    keys, sentences = {}, []
    for binding_id, value in _flat(table).items():
        if isinstance(value, str) and value.strip():
            keys[binding_id] = value
        elif isinstance(value, list) and value and all(isinstance(key, str) and key.strip() for key in value):
            keys[binding_id] = ",".join(value)
        else:
            sentences.append(f'{binding_id} has the key {value!r}: it must be a text, as in "ctrl+x"')
    return keys, sentences


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested tables, which TOML makes of ids with dots."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{rest}": inner for rest, inner in _flat(value).items()}
        else:
            flat[name] = value
    return flat
