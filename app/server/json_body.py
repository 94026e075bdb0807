"""JSON of a request. What parsers disagree about, and what takes long to read, is refused by the name of its field."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_DEPTH = 64
MOST_DIGITS = 100
MOST_PARTS = 4_096
"""Most lists and objects, such as messages and parts of their content."""
MOST_KEYS = 2_048
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""What a body with half of a surrogate pair contains; a body with a whole pair may contain it too."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_INVALID = "the body is not valid JSON"


class BodyError(ValueError):
    """A body that is refused.

    Args:
        message: one sentence.
        place: the field, if the fault is in one.
    """

    def __init__(self, message: str, place: str | None = None) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands for a number that is refused."""

    problem: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One object."""
    if len(pairs) > MOST_KEYS:
        raise BodyError(f"an object of the body has more than {MOST_KEYS} keys: leave some out")
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = _printable(Counter(key for key, _ in pairs).most_common(1)[0][0])
        raise BodyError(f"the body gives {twice} more than once: give it once", twice)
    return made


def read_body(data: bytes) -> dict[str, Any]:
    """The object that a body consists of.

    Raises:
        BodyError: it is something else, or is refused.
    """
    brackets = _brackets(data)
    if brackets > MOST_PARTS and _brackets(_STRING.sub(b"", data)) > MOST_PARTS:
        raise BodyError(f"the body has more than {MOST_PARTS} lists and objects: join short messages or parts")
    refused: list[_Refused] = []

    def refuse(problem: str) -> _Refused:
        refused.append(_Refused(problem))
        return refused[-1]

    def number(kind: type[Any]) -> Callable[[str], Any]:
        problem = f"has more than {MOST_DIGITS} digits"
        return lambda text: kind(text) if len(text) <= MOST_DIGITS else refuse(problem)

    try:
        values = json.loads(
            data, object_pairs_hook=_object, parse_int=number(int), parse_float=number(float),
            parse_constant=lambda name: refuse(f"is {name}"),  # NaN or an infinity, which JSON does not have
        )  # fmt: skip
    except BodyError:
        raise
    except (ValueError, RecursionError):
        raise BodyError(f"{_INVALID}: send one JSON object") from None
    if not isinstance(values, dict):
        raise BodyError("the body is not a JSON object: send one")
    if refused or brackets > MOST_DEPTH or b"\0" in data[:4] or _ESCAPED_HALF.search(data):
        _check(values)
    return values


def _brackets(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _check(values: dict[str, Any]) -> None:
    """Check that an object has no refused number, no half of a surrogate pair, and not too many levels.

    Raises:
        BodyError: it has, or is.
    """
    level: list[tuple[tuple[str | int, ...], Any]] = [((), values)]
    for _ in range(MOST_DEPTH):
        below = []
        for place, value in level:
            for key, child in value.items() if isinstance(value, dict) else enumerate(value):
                at = (*place, key)
                if isinstance(key, str) and _HALF.search(key):
                    raise BodyError(f"the name {_path(at)} has half of a surrogate pair: take it out", _path(at))
                if isinstance(child, _Refused):
                    raise BodyError(f"{_INVALID}: {_path(at)} {child.problem}", _path(at))
                if isinstance(child, str) and _HALF.search(child):
                    half = "should be a valid string, unable to parse half of a surrogate pair: take it out"
                    raise BodyError(f"{_path(at)} {half}", _path(at))
                if isinstance(child, dict | list):
                    below.append((at, child))
        level = below
    if level:
        name = _printable(str(level[0][0][0]))
        raise BodyError(f"{name} is nested more than {MOST_DEPTH} levels deep: leave some out", name)


def _path(place: tuple[str | int, ...]) -> str:
    return ".".join(_printable(str(part)) for part in place)


def _printable(name: str) -> str:
    return ascii(name)[1:81].removesuffix("'")
