"""The published JSON Schema of traces: it is of this version, says what every field is, and real traces are valid."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scripts.make_trace_schema import FILE, text
from specchat.engine import to_json
from specchat.engine.trace import VERSION
from tests.engine.records import EVERY_RECORD, MEASURED

TRACES = sorted((FILE.parent / "traces").glob("*.jsonl"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(FILE.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_that_of_the_records() -> None:
    assert FILE.read_text("utf-8") == text(), "run python -m scripts.make_trace_schema"
    assert json.loads(text())["$id"].endswith(f":{VERSION}")


def test_every_field_says_what_it_is() -> None:
    def fields() -> Iterator[tuple[str, dict[str, Any]]]:
        for name, kind in json.loads(text())["$defs"].items():
            yield name, kind
            yield from (
                (f"{name}.{field}", of) for field, of in kind.get("properties", {}).items() if field != "record"
            )
            yield from ((f"{name}.{of['title']}", of) for of in kind.get("prefixItems", []))

    assert [name for name, of in fields() if not of.get("description")] == []


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_recorded_traces_are_valid(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    lines = path.read_text("utf-8").splitlines()
    for line in [*lines[:8], *lines[8::5], *lines[-3:]]:
        validator.validate(json.loads(line))


def test_records_are_valid_and_damaged_ones_are_not(validator: jsonschema.Draft202012Validator) -> None:
    for record in (*EVERY_RECORD, *MEASURED):
        values = json.loads(to_json(record))
        validator.validate(values)
        assert not validator.is_valid({**values, "more": 1})
        assert not validator.is_valid({**values, "record": "other"})
        for name in values:
            assert not validator.is_valid({**values, name: {"nothing": "fits"}}), name
    assert not validator.is_valid({"record": "trace", "version": VERSION + 1})
