"""Calls of tools are separated from the answer while they are written; names and arguments of every syntax."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import Call, Request, Tool
from specchat.engine.sequence.call_formats import MARKS, find_call_format
from specchat.engine.sequence.call_parser import CallMarks, CallParser
from specchat.engine.sequence.call_syntax import NoCallError, read_calls
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from tests.engine.sequence.call_cases import CALLED, CASES, PARIS, TOOLS, named, streamed, tokenizer_of

PYTHON_TAGS = re.compile(r"<\|python_\w+\|>")
"""Control tokens of Llama around calls."""


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_calls_are_separated_in_the_stream(name: str, special: bool) -> None:
    case = CASES[name]
    expected = [("get_weather", PARIS), *([("clock", {})] if case.second else [])]
    reply = case.reply if special else PYTHON_TAGS.sub("", case.reply)
    thought, answer, calls = streamed(tokenizer_of(case, special=special), reply)
    assert named(calls) == expected
    assert thought in ("", "Hm.")
    assert ("Hm." in case.reply) == bool(thought)
    assert answer.strip() == ""
    assert len({call.id for call in calls}) == len(calls)
    assert named(streamed(tokenizer_of(case, special=special), reply, several=False)[2]) == expected[:1]


@pytest.mark.parametrize("name", ["Hermes, Qwen3", "Qwen3.5, Qwen3 Coder", "Ministral 3", "gpt-oss", "Gemma 4"])
def test_a_call_of_nothing_that_exists_stays_in_the_answer(name: str) -> None:
    case = CASES[name]
    reply = case.reply.replace("get_weather", "remove_all").split("</tool_call>")[0].split("[TOOL_CALLS]clock")[0]
    _, answer, calls = streamed(tokenizer_of(case, special=True), reply.split("<|tool_call>call:clock")[0])
    assert calls == []
    assert "remove_all" in answer
    assert "Paris" in answer


@pytest.mark.parametrize(
    "body", ['{"name": "clock", "arguments": {"a":', '{"name": "clock", "arguments": [1]}', "Hm", ""]
)
def test_arguments_that_do_not_parse_stay_in_the_answer(body: str) -> None:
    tokenizer = tokenizer_of(CASES["Hermes, Qwen3"], special=True)
    text = f"So: <tool_call>{body}</tool_call> Done."
    assert streamed(tokenizer, text) == ("", text, [])


def test_text_around_calls_is_the_answer() -> None:
    tokenizer = tokenizer_of(CASES["Hermes, Qwen3"], special=False)
    text = 'I look.\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\nThen < more'
    assert streamed(tokenizer, text)[1] == "I look.\nThen < more"
    assert streamed(tokenizer_of(CASES["Llama 3"], special=True), 'Say {"name": "clock"}')[1:] == (
        'Say {"name": "clock"}', [],
    )  # fmt: skip


CALL = '{"name": "clock", "arguments": {}}'


SNIPPETS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "{",
    CALL,
    "clock[ARGS]{}",
    "<",
    "</",
    "[",
    "\n",
    " ",
    "é",
    "ok",
]


@given(st.sampled_from(MARKS), st.lists(st.sampled_from(SNIPPETS)), st.integers(1, 7))
def test_calls_do_not_depend_on_how_the_text_is_cut(marks: CallMarks, said: list[str], size: int) -> None:
    text = "".join(said)

    def parsed(pieces: Sequence[str]) -> tuple[str, list[tuple[str, Any]]]:
        parser = CallParser(marks, TOOLS)
        answer = "".join(map(parser.feed, pieces)) + parser.end()
        return answer, named(parser.calls)

    whole = parsed([text])
    assert parsed([text[at : at + size] for at in range(0, len(text), size)]) == whole
    assert whole[1] or whole[0] == text


WITHOUT_PARTS = ("Gemma 4", "LFM2.5", "Llama 4, whose template writes values as text", "Apertus", "Muse")
"""Formats whose arguments are certain only at the end of a call."""
WITH_CHANNELS = ("Gemma 4", "gpt-oss", "Muse", "Solar Open", "Command A Reasoning")
"""Formats whose marks are whole tokens."""
INSTEAD_OF_THINKING = "Qwen3.5, which calls instead of ending the thinking"


def parts_of(name: str, reply: str) -> tuple[list[tuple[str, str]], list[Call]]:
    """The names and arguments that were written before each call was complete, and the complete calls."""
    tokenizer = tokenizer_of(CASES[name], special=True)
    form = find_call_format(tokenizer)
    assert form is not None
    prompt = encode(Request("r", CALLED[:1], tools=TOOLS), tokenizer)
    text = Detokenizer(tokenizer, (), form.parser(prompt, tokenizer, TOOLS, several=True), form.special)
    begun: dict[str, Call] = {}
    calls: list[Call] = []
    for token in tokenizer.encode(reply):
        text.add(token)
        complete, parts = text.take_calls()
        for part in parts:
            before = begun.get(part.id, part._replace(arguments=""))
            begun[part.id] = part._replace(arguments=before.arguments + part.arguments)
        calls += complete
    text.tail()
    calls += text.take_calls()[0]
    for call in calls:
        assert call.arguments.startswith(begun.get(call.id, call).arguments)
    return [(call.name, call.arguments) for call in begun.values()], calls


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*WITHOUT_PARTS, INSTEAD_OF_THINKING)])
def test_arguments_are_known_while_they_are_written(name: str) -> None:
    parts, calls = parts_of(name, CASES[name].reply)
    assert [name for name, _ in parts][:1] == ["get_weather"]
    assert "Paris" in parts[0][1]
    assert named(calls)[0] == ("get_weather", PARIS)
    cut, none = parts_of(name, CASES[name].reply.partition("aris")[0])  # within the value
    assert [name for name, _ in cut] == [] or (not none and "aris" not in cut[0][1])


def test_arguments_are_written_as_the_model_writes_them() -> None:
    written = '{"city":"a\\"b\\\\","units" : { "l":[1.50,"</tool_call>}"]}}'
    parts, (call,) = parts_of(
        "Hermes, Qwen3", f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>'
    )
    assert parts == [("get_weather", written)]
    assert call.arguments == written
    lines = '{"city": "a\nb\tc"}'  # which JSON does not allow
    _, (call,) = parts_of("Ministral 3", f"[TOOL_CALLS]get_weather[ARGS]{lines}")
    assert json.loads(call.arguments) == {"city": "a\nb\tc"}


@pytest.mark.parametrize("begun", ["", "I look.\n"])
def test_a_call_within_the_thinking_is_one_only_where_the_reply_ends_with_it(begun: str) -> None:
    case = CASES[INSTEAD_OF_THINKING]
    call = case.reply.removeprefix("Hm.\n")
    tokenizer = tokenizer_of(case, special=False)
    assert len(streamed(tokenizer, begun + call)[2]) == 2
    for after in ("\nthat is how.\n</think>\n\nHello", "\n</think>Hello"):
        thought, answer, calls = streamed(tokenizer, begun + call + after)
        assert calls == []
        assert answer.strip() == "Hello"
        assert thought.startswith((begun + call).strip())


def test_a_mark_in_a_value_ends_no_call() -> None:
    value = "contains <tool_call> and </think>"
    pair = f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    (call,) = streamed(tokenizer_of(CASES["GLM"], special=False), "</think>" + pair)[2]
    assert json.loads(call.arguments) == {"city": value}


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITH_CHANNELS])
def test_no_part_of_a_mark_is_in_the_answer(name: str) -> None:
    """However the text is cut; and the text before a call stays."""
    case = CASES[name]
    tokenizer = tokenizer_of(case, special=False)
    form = find_call_format(tokenizer)
    assert form is not None
    prompt = encode(Request("r", CALLED[:1], tools=TOOLS), tokenizer)
    for size in (1, 2, 5, 11):
        reply = PYTHON_TAGS.sub("", case.reply)
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        parser = form.parser(prompt, tokenizer, TOOLS, several=True)
        said = [(parser.feed(piece), parser.thinking) for piece in [*pieces, "", ""]]
        said.append((parser.end(), parser.thinking))
        assert "".join(text for text, thinking in said if not thinking).strip() == ""
        assert named(parser.calls)[0] == ("get_weather", PARIS)


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
