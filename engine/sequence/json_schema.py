"""JSON schemas: reading one, and whether some finite value satisfies it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from specchat.engine.constraint import FIELD
from specchat.engine.errors import EngineError, check, first_line


def read_schema(text: str) -> dict[str, Any]:
    """Read a JSON schema.

    Raises:
        EngineError: it is not a JSON object.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the JSON schema is not JSON ({first_line(error)}): correct it", FIELD) from None
    check(isinstance(schema, dict), 'the JSON schema is no object: write one such as {"type": "object"}', FIELD)
    return dict(schema)


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
