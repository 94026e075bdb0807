"""Key bindings of the user: the table `[keys]` of the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specchat.app.storage.files import read_toml

TABLE = "keys"


def changed_keys(path: Path) -> tuple[dict[str, str], list[str]]:
    """Keys by binding id, and a sentence for each invalid entry; both empty if the file cannot be read."""
    try:
        table = read_toml(path).get(TABLE, {})
    except (OSError, ValueError):  # reported when the settings were loaded
        return {}, []
    if not isinstance(table, Mapping):
        return {}, [f"{path}: {TABLE} must be a table, as in [{TABLE}]"]
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
