"""JSON schemas: reading one, the form that llguidance takes, and whether some finite value satisfies it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from math import isfinite
from typing import Any

from specchat.engine.errors import EngineError, check, first_line
from specchat.engine.request import FIELD

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Formats that llguidance knows; any other format is a remark, as it is for validators."""
_NO_DEMAND = {"uniqueItems": False, "propertyNames": {"type": "string"}}
"""Keywords that llguidance does not know, with a value at which they forbid nothing."""
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose values hold no schemas."""
_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values have a schema for each name."""
_OLD = r"http://json-schema\.org/draft-0[0-3]/.*"


def read_schema(text: str) -> dict[str, Any]:
    """Read a JSON schema.

    Raises:
        EngineError: it is not a JSON object, or of a draft before 4.
    """
    try:
        schema = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the JSON schema is not JSON ({first_line(error)}): correct it", FIELD) from None
    check(isinstance(schema, dict), 'the JSON schema is no object: write one such as {"type": "object"}', FIELD)
    old = re.fullmatch(_OLD, str(schema.get("$schema")))
    check(not old, "the JSON schema is of draft 3 or older: write it in draft 4 or a later one", FIELD)
    return dict(schema)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def simplified(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a schema without remarks, and with anyOf for each oneOf whose options exclude each other.

    llguidance does not follow references to see that they do, which are the form of tagged unions.

    Raises:
        EngineError: it is nested too deeply, or asks for several properties of any names.
    """

    def of(part: Any, *, names: bool = False) -> Any:
        if isinstance(part, list):
            return [of(each) for each in part]
        if not isinstance(part, dict):
            return part
        if names:
            return {name: of(each) for name, each in part.items()}
        _check_names(part)
        made = {key: value if key in _DATA else of(value, names=key in _NAMES) for key, value in part.items()}
        made = {key: value for key, value in made.items() if not _is_remark(key, value)}
        if "oneOf" in part and "anyOf" not in part and _exclusive(schema, part["oneOf"]):
            made = {"anyOf" if key == "oneOf" else key: value for key, value in made.items()}
        return made

    try:
        return dict(of(schema))
    except RecursionError:
        raise EngineError("the JSON schema is nested too deeply: put parts of it under $defs", FIELD) from None


def _check_names(part: Mapping[str, Any]) -> None:
    """Check that no names have to differ from each other, which llguidance does not see to."""
    least, required = part.get("minProperties", 0), part.get("required", [])
    told = "the JSON schema has minProperties above the number of required ones: list more names under required"
    check(not (isinstance(least, int) and isinstance(required, list) and least > len(required) + 1), told, FIELD)


def _is_remark(key: str, value: Any) -> bool:
    """Whether a keyword with this value forbids nothing, while llguidance does not know it."""
    if key == "format":
        return isinstance(value, str) and value not in _FORMATS
    return key in _NO_DEMAND and value == _NO_DEMAND[key]


def _exclusive(schema: Any, options: Any) -> bool:
    """Whether it is plain that no value satisfies two of these options: by type, or by the text of some property."""
    if not isinstance(options, list):
        return False
    found = [_resolved(schema, each) for each in options]
    with suppress(TypeError, AttributeError):  # a part is not valid, which llguidance finds
        return all(_apart(schema, one, other) for one, other in combinations(found, 2))
    return False


def _apart(schema: Any, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no value satisfies both of two parts of a schema."""
    if _disjoint(_types(one), _types(other)) or _disjoint(_texts(schema, one), _texts(schema, other)):
        return True
    if not _types(one) == _types(other) == {"object"}:
        return False
    tags = {*one.get("required", ()), *other.get("required", ())}
    pairs = ([_texts(schema, each.get("properties", {}).get(tag)) for each in (one, other)] for tag in tags)
    return any(_disjoint(*pair) for pair in pairs)


def _disjoint(one: set[str], other: set[str]) -> bool:
    return bool(one and other) and not one & other


def _types(part: Mapping[str, Any]) -> set[str]:
    """Types of the values of a part; empty if they are not stated."""
    stated = part.get("type", [])
    return {"number" if each == "integer" else each for each in ([stated] if isinstance(stated, str) else stated)}


def _texts(schema: Any, part: Any) -> set[str]:
    """The values of a part if all of them are texts; empty if they are not stated, or are others."""
    part = _resolved(schema, part)
    stated = [part["const"]] if "const" in part else part.get("enum", [])
    return set(stated) if all(isinstance(each, str) for each in stated) else set()


def _resolved(schema: Any, part: Any) -> dict[str, Any]:
    """A part of a schema, or what it refers to; an empty one if that is no object."""
    found = target(schema, part["$ref"]) if isinstance(part, dict) and isinstance(part.get("$ref"), str) else part
    return found if isinstance(found, dict) else {}


def is_finite(schema: Mapping[str, Any]) -> bool:
    """Whether a finite value may satisfy a valid schema, whose references need not end: their least fixed point."""
    left, finite = set(_references(schema)), set[str]()
    while found := {each for each in left if _ends(target(schema, each), finite)}:
        left, finite = left - found, finite | found
    return _ends(schema, finite)


def _references(part: Any) -> Iterator[str]:
    """All references in a schema."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = [*part.values()]
    for each in part if isinstance(part, list) else ():
        yield from _references(each)


def target(schema: Any, reference: str) -> Any:
    """The part of a schema that a JSON pointer names; an empty schema for other references."""
    if reference == "#":
        return schema
    for key in reference.removeprefix("#/").split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and key.isdecimal():
            schema = dict(enumerate(schema)).get(int(key), {})
        else:
            schema = schema.get(key, {}) if isinstance(schema, dict) else {}
    return schema


def _ends(part: Any, finite: Collection[str]) -> bool:
    """Whether a finite value may satisfy a part of a schema, if one satisfies each part that `finite` names."""
    if not isinstance(part, dict):
        return part is not False
    if "$ref" in part and part["$ref"] not in finite:
        return False
    kind, needed = part.get("type"), [*part.get("allOf", ())]
    if kind == "object" or (kind is None and "properties" in part):
        needed += [part.get("properties", {}).get(name, {}) for name in part.get("required", ())]
    elif kind == "array":
        first, least = part.get("prefixItems", []), part.get("minItems", 0)
        needed += [*first[:least], *([part.get("items", {})] if least > len(first) else [])]
    options = [part[name] for name in ("anyOf", "oneOf") if name in part]
    return all(_ends(each, finite) for each in needed) and all(any(_ends(x, finite) for x in each) for each in options)
