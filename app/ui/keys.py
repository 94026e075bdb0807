"""Ids of key bindings, and other keys for them from the settings file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from textual.app import App
from textual.binding import Binding, BindingType
from textual.keys import REPLACED_KEYS, Keys

from specchat.app.ui.textual_internals import key_of_character, keymap_of

APP, CHAT = "app", "chat"
"""Groups whose bindings work at the same time as the bindings of other groups."""
_AT_ONCE = {(CHAT, "transcript"), (CHAT, "composer"), ("alignment", "aligned-tokens")}
_MODIFIERS = ("ctrl", "shift", "alt", "super", "hyper", "meta")
_NAMED = {key.value for key in Keys} | {f"f{number}" for number in range(1, 25)} | set(REPLACED_KEYS)
BINDINGS: dict[str, list[Binding]] = {}
"""Every binding of the app by its id."""


def registered(group: str, *bindings: Binding) -> list[BindingType]:
    """Register bindings; those without an id get one: the group and the description, as `chat.new`.

    Bindings with the same description share an id.
    """
    made: list[BindingType] = []
    for binding in bindings:
        name = re.sub(r"\W+", "-", (binding.description or binding.action).lower()).strip("-")
        each = binding if binding.id else replace(binding, id=f"{group}.{name}")
        known = BINDINGS.setdefault(str(each.id), [])
        if each not in known:
            known.append(each)
        made.append(each)
    return made


def default_keys(binding_id: str) -> list[str]:
    """The keys of a binding without settings."""
    return [key.strip() for binding in BINDINGS[binding_id] for key in binding.key.split(",")]


def keys_of(app: App[Any], binding_id: str) -> list[str]:
    """The present keys of a binding."""
    changed = keymap_of(app).get(binding_id)
    return changed.split(",") if changed else default_keys(binding_id)


def key_names(app: App[Any], binding_id: str, most: int = 2) -> str:
    """The keys of a binding for display."""
    first = BINDINGS[binding_id][0]
    shown = [app.get_key_display(replace(first, key=key, key_display=None)) for key in keys_of(app, binding_id)]
    return "  ".join(dict.fromkeys(shown[:most]))


def keymap(changed: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The keymap for Textual, and a sentence for each invalid entry.

    Args:
        changed: Keys by the ids of bindings, several separated by commas.
    """
    wanted, sentences = {}, []
    for binding_id, text in changed.items():
        keys = [_normal(key.strip()) for key in text.split(",")]
        if binding_id not in BINDINGS:
            near = get_close_matches(binding_id, BINDINGS, 1)
            sentences.append(f"no key binding has the id {binding_id!r} ({f'{near[0]}?' if near else '? lists them'})")
        elif wrong := next((key for key in keys if not _is_key(key)), None):
            sentences.append(f"{binding_id} has the key {wrong!r}, which is not known: write it as f7, ctrl+x or x")
        else:
            wanted[binding_id] = keys
    for binding_id in list(wanted):
        clash = _clash(binding_id, wanted)
        if clash is not None:
            key, other = clash
            sentences.append(f"{binding_id} cannot have the key {key}, which {other} has: give {other} another key too")
            del wanted[binding_id]
    for binding_id in list(wanted):  # Textual removes a changed key from all bindings that share it
        for other in _sharing(binding_id):
            wanted.setdefault(other, default_keys(other))
    return {binding_id: ",".join(keys) for binding_id, keys in wanted.items()}, sentences


def _clash(binding_id: str, wanted: Mapping[str, list[str]]) -> tuple[str, str] | None:
    """A key that another binding uses at the same time, and the id of that binding."""
    group, sharing = binding_id.partition(".")[0], _sharing(binding_id)
    own = set(default_keys(binding_id))
    for other in BINDINGS:
        theirs = other.partition(".")[0]
        at_once = APP in (group, theirs) or group == theirs or _AT_ONCE & {(group, theirs), (theirs, group)}
        if other != binding_id and other not in sharing and at_once:
            for key in wanted.get(other) or map(_normal, default_keys(other)):
                if key in wanted[binding_id] and not (key in own and key in default_keys(other)):
                    return key, other
    return None


def _sharing(binding_id: str) -> list[str]:
    """Other bindings of the group that have one of its default keys."""
    group, keys = binding_id.partition(".")[0], set(default_keys(binding_id))
    own = (other for other in BINDINGS if other != binding_id and other.partition(".")[0] == group)
    return [other for other in own if keys & set(default_keys(other))]


def _normal(key: str) -> str:
    """The name that Textual gives the key of a character."""
    *modifiers, last = key.rpartition("+") if len(key) > 1 else ("", "", key)
    return "".join(modifiers) + (key_of_character(last) if len(last) == 1 else last)


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+")
    known = last in _NAMED or len(last) == 1 or any(last == key for key in _KEY_NAMES)
    return bool(last) and known and all(modifier in _MODIFIERS for modifier in modifiers)


_KEY_NAMES = {key_of_character(chr(code)) for code in range(33, 127)}
