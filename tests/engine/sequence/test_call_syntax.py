"""Syntaxes of calls: from text to names and arguments."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import Tool
from specchat.engine.sequence.call_syntax import NoCallError, read_calls
from tests.engine.sequence.call_cases import TOOLS

NESTED = {"city": 'a{b:c}, "d"', "units": {"on": True, "list": ["x", 1.5]}}


def test_values_written_as_text_get_the_type_of_the_schema() -> None:
    pairs = {"city": "5", "days": "5", "units": '{"t": "C"}', "other": "yes"}
    function = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs.items())
    ((_, arguments),) = read_calls(f"<function=get_weather>\n{function}</function>", TOOLS)
    assert json.loads(arguments) == {"city": "5", "days": 5, "units": {"t": "C"}, "other": "yes"}


@pytest.mark.parametrize(
    "text",
    [
        'call:get_weather{city:<|"|>a{b:c}, "d"<|"|>,units:{on:true,list:[<|"|>x<|"|>,1.5]}}',
        "get_weather(city='a{b:c}, \"d\"', units={'on': true, 'list': ['x', 1.5]})",
        json.dumps({"name": "get_weather", "arguments": json.dumps(NESTED)}),
    ],
)
def test_nested_arguments(text: str) -> None:
    ((_, arguments),) = read_calls(text, TOOLS)
    assert json.loads(arguments) == NESTED


@given(st.text(alphabet="{}[]()\"'\\:,.=<>|/ clocknamearguments0\n"))
def test_any_text_is_calls_or_refused(text: str) -> None:
    try:
        calls = read_calls(text, TOOLS)
    except NoCallError:
        return
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"name":' * 10**4, "clock(a=" + "(" * 10**5, "clock(a=9**9**9)"])
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(NoCallError):
        read_calls(text, TOOLS)


SCHEMAS = {
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "kind": {"$ref": "#/$defs/kind"},
    "either": {"type": ["string", "integer"]}, "size": {"type": "number"}, "free": {},
}  # fmt: skip
TYPED = Tool("f", "", json.dumps({"type": "object", "properties": SCHEMAS, "$defs": {"kind": {"enum": ["1", "a"]}}}))


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("maybe", "5", "5"), ("maybe", "null", None), ("kind", "1", "1"), ("either", "5", 5),
        ("either", "true", "true"),
        ("either", '"x"', "x"), ("size", "5", 5), ("size", "1.5", 1.5), ("free", "[1]", [1]), ("free", "a b", "a b"),
        ("maybe", "\n x\n\n", " x\n"), ("maybe", "x\n", "x\n"),
    ],
)  # fmt: skip
def test_a_value_written_as_text_has_a_type_that_its_schema_allows(key: str, written: str, value: object) -> None:
    for text in (
        f"<function=f><parameter={key}>{written}</parameter></function>",
        f"f<arg_key>{key}</arg_key><arg_value>{written}</arg_value>",
    ):
        ((_, arguments),) = read_calls(text, (TYPED,))
        assert json.loads(arguments) == {key: value}
