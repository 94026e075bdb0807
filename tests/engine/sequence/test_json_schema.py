"""JSON schemas in the forms that pydantic, zod and OpenAPI write: what their grammars accept."""

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from specchat.engine import Constraint, ConstraintKind, EngineError, check_constraint
from specchat.engine.sequence.grammar import matcher_of


def tagged(name: str, **more: Any) -> dict[str, Any]:
    properties = {"kind": {"const": name, "type": "string"}, **more}
    return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}


NODE = {"oneOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
FORMS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "tagged union of pydantic": (
        {
            "$defs": {"Cat": tagged("cat", lives={"type": "integer"}), "Dog": tagged("dog")},
            "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        },
        [{"kind": "cat", "lives": 9}, {"kind": "dog"}],
        [{"kind": "dog", "lives": 9}, {"kind": "cow"}],
    ),
    "list that refers to itself": (
        {
            "$defs": {"node": {"type": "object", "properties": {"next": NODE}, "additionalProperties": False}},
            "$ref": "#/$defs/node",
        },
        [{}, {"next": None}, {"next": {"next": None}}],
        [{"next": 1}],
    ),
    "record of zod": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        [{"a": 1.5}],
        [{"a": "b"}],
    ),
    "formats of OpenAPI": (
        {"type": "array", "items": [{"type": "string", "format": "byte"}, {"type": "string", "format": "date"}]},
        [["aGk=", "2024-02-29"]],
        [["aGk=", "2024-02-30"]],
    ),
    "keywords as names and as data": (
        {
            "type": "object",
            "properties": {"format": {"enum": [{"format": "x", "uniqueItems": False}]}, "oneOf": {"type": "integer"}},
            "required": ["format", "oneOf"],
        },
        [{"format": {"format": "x", "uniqueItems": False}, "oneOf": 1}],
        [{"format": {}, "oneOf": 1}, {"format": {"format": "x", "uniqueItems": False}, "oneOf": "1"}],
    ),
    "long integers": ({"type": "integer", "maximum": 1 << 64}, [7], ["1"]),
    "nothing demanded": ({"type": "array", "uniqueItems": False, "items": {"type": "integer"}}, [[1, 1]], [["1"]]),
}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    constraint = Constraint(ConstraintKind.SCHEMA, json.dumps(schema))
    check_constraint(constraint)
    matcher, text = matcher_of(constraint, "", LLTokenizer("byte")), json.dumps(value).encode()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_others_are_followed(name: str) -> None:
    schema, good, bad = FORMS[name]
    assert [each for each in good if not accepts(schema, each)] == []
    assert [each for each in bad if accepts(schema, each)] == []


OVERLAPS = {
    "types": [{"type": "integer"}, {"type": "number"}],
    "a tag that neither requires": [{**tagged("cat"), "required": []}, {**tagged("dog"), "required": []}],
    "the same tag": [tagged("cat"), {"$ref": "#/oneOf/0"}],
    "tags with a common value": [tagged("cat"), {**tagged("dog"), "properties": {"kind": {"enum": ["dog", "cat"]}}}],
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_options_that_a_value_may_share_are_refused(name: str) -> None:
    with pytest.raises(EngineError, match="oneOf whose options overlap"):
        check_constraint(Constraint(ConstraintKind.SCHEMA, json.dumps({"oneOf": OVERLAPS[name]})))
