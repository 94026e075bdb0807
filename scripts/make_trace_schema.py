"""Writes `assets/trace.schema.json`, the JSON Schema of a line of a trace, from the records and their docstrings.

Run: python -m scripts.make_trace_schema
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from specchat.engine.trace import EARLIER, READABLE, VERSION, StoredRecord

FILE = Path(__file__).resolve().parents[1] / "assets" / "trace.schema.json"


def schema() -> dict[str, Any]:
    """The schema of one line."""
    kinds = get_args(StoredRecord)
    named: dict[str, Any] = {}
    for kind in kinds:
        _define(kind, named, record=True)
    header = {
        "type": "object",
        "description": "First line of a trace.",
        "properties": {
            "record": {"const": "trace"},
            "version": {"enum": list(READABLE), "description": "Version of the format; fields of a newer one are new."},
        },
        "required": ["record", "version"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:specchat:trace:{VERSION}",
        "title": f"specchat trace, version {VERSION}",
        "description": (
            "One line of a trace file, and what a chunk of specchat serve carries as `speculation`. Times are in "
            "seconds; `at` counts from the creation of the engine. What is not required came with a later version."
        ),
        "oneOf": [{"$ref": "#/$defs/Header"}, *({"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds)],
        "$defs": {"Header": header, **named},
    }


def text() -> str:
    """The schema as the file has it."""
    return json.dumps(schema(), ensure_ascii=False, indent=1) + "\n"


def _define(kind: type, named: dict[str, Any], *, record: bool = False) -> dict[str, Any]:
    """A reference to the schema of a record or of a part of one, which is added to `named`."""
    reference = {"$ref": f"#/$defs/{kind.__name__}"}
    if kind.__name__ in named:
        return reference
    named[kind.__name__] = {}  # its place, in order
    hints, documented = get_type_hints(kind), dict(_documented(kind))
    about = inspect.cleandoc(kind.__doc__ or "").split("\n\nRaises:")[0]
    if is_dataclass(kind):
        properties = {"record": {"const": kind.__name__.lower()}} if record else {}
        properties |= {f.name: _described(hints[f.name], documented.get(f.name, ""), named) for f in fields(kind)}
        earlier = EARLIER.get(kind, {}).items()
        properties |= {name: _described(hint, f"Of traces before version {VERSION}.", named) for name, hint in earlier}
        required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
        named[kind.__name__] = {
            "type": "object",
            "description": about,
            "properties": properties,
            "required": [*(["record"] if record else []), *required],
            "additionalProperties": False,
        }
    else:  # a named tuple, which is a list in a trace
        named[kind.__name__] = {
            "type": "array",
            "description": about,
            "prefixItems": [
                {"title": name, **_described(hint, documented.get(name, ""), named)} for name, hint in hints.items()
            ],
            "items": False,
            "minItems": len(hints) - len(vars(kind)["_field_defaults"]),
        }
    return reference


def _described(hint: Any, about: str, named: dict[str, Any]) -> dict[str, Any]:
    return {**_schema(hint, named), **({"description": about} if about else {})}


def _schema(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field of this type, as `engine.trace` reads it."""
    if hint in (int, float, str, bool):
        return {"type": {int: "integer", float: "number", str: "string", bool: "boolean"}[hint]}
    if isinstance(hint, types.UnionType):
        some = [_schema(arm, named) for arm in get_args(hint) if arm is not type(None)]
        return {"anyOf": [*some, {"type": "null"}]}
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        if others == [...]:
            return {"type": "array", "items": _schema(first, named)}
        each = [_schema(one, named) for one in (first, *others)]
        return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
    if issubclass(hint, StrEnum):
        about = dict(_documented(hint))
        meanings = [f"{value}: {about[value.name]}" for value in hint if about.get(value.name)]
        return {"enum": [value.value for value in hint], **({"$comment": " ".join(meanings)} if meanings else {})}
    return _define(hint, named)


def _documented(kind: type) -> Iterator[tuple[str, str]]:
    """Names of fields, with the docstrings below them."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        target = (
            field.target
            if isinstance(field, ast.AnnAssign)
            else field.targets[0]
            if isinstance(field, ast.Assign)
            else None
        )
        if said and isinstance(target, ast.Name):
            yield target.id, " ".join(inspect.cleandoc(str(below.value.value)).split())  # type: ignore[attr-defined]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
