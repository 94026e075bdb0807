"""Types and ranges of the settings that files state about a model, checked before anything uses them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError

LARGEST = (1 << 31) - 1
"""Largest value of counts and sizes."""
_SHOWN = 40
"""Characters of an invalid value in a message."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values.

    Args:
        words: what it is called.
        holds: whether a value is of the kind.
    """

    words: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.words} or {other.words}", lambda value: self.holds(value) or other.holds(value))


def whole(least: int, most: int = LARGEST) -> Kind:
    """Whole numbers of a range."""
    return Kind(f"a whole number from {least} to {most}", lambda value: _is_whole(value) and least <= value <= most)


def number(least: float = -math.inf) -> Kind:
    """Finite numbers from `least` on."""
    words = "a number" if least == -math.inf else f"a number of at least {least:g}"
    return Kind(words, lambda value: (_is_whole(value) or type(value) is float) and least <= value < math.inf)


def a_list(kind: Kind, *, filled: bool = False) -> Kind:
    """Lists of values of a kind; with `filled`, not empty."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and (bool(value) or not filled) and all(map(kind.holds, value))

    return Kind(f"a list of which each item is {kind.words}", holds)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", lambda value: isinstance(value, str))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TOKEN = Kind("a whole number", _is_whole)
"""A token id; one that is not in the vocabulary is ignored where it is used."""


def check_values(path: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Check the values of a file.

    Args:
        path: of the file, for the message.
        values: by key.
        kinds: by regular expression of the key; the first that fits counts. Other keys may have any value.

    Raises:
        EngineError: a value is of another kind; file, key and value are named.
    """
    for key, value in values.items():
        kind = next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, key)), None)
        if kind is not None and not kind.holds(value):
            shown = repr(value) if len(repr(value)) <= _SHOWN else f"{repr(value)[:_SHOWN]}…"
            raise EngineError(f"{path} states {key} {shown}, which is not {kind.words}: fetch it again")
